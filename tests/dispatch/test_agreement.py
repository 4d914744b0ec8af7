"""Ranks that do not fit together: every rank gets an error that names the difference, and none waits."""

import dataclasses
import os
import time

import pytest
import torch

from moesaic import Cpu, MoE, Reference, Routing, SwiGLU, bind
from moesaic.dispatch.agreement import agree, apart
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.recorded import Recorded
from moesaic.dispatch.texts import gather_texts
from moesaic.dispatch.threads import Threads, in_threads, ranks_in_threads
from moesaic.errors import BatchError, CollectiveError, DispatchError, GradientError, MoesaicError
from tests.dispatch.layers import Given, calls, layer_problem, local_weights

EVEN = Placement.contiguous(5, 2)
OTHER = Placement(5, ((0, 1, 3), (2, 4)))


def errors(ranks, work):
    """The error of each rank, or None; `work` is given the rank's number and its Ranks."""

    def run(own):
        try:
            work(own.rank, own)
        except MoesaicError as fault:
            return fault
        return None

    return in_threads(run, ranks)


def build(ranks, number, *, placement=EVEN, backend=None, kind=AllToAll, **fields):
    """A layer on one rank."""
    problem = layer_problem(len(EVEN.experts[number]), **fields)
    backends = (Reference() if backend is None else backend,)
    experts = bind(problem, local_weights(EVEN, number, problem.dtype), backends=backends)
    return MoE(Given(calls([2, 1])[number][1]), kind(ranks, placement), experts)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"backend": Cpu()}, "backend: reference on rank 0, but cpu on rank 1"),
        ({"top_k": 4}, "problem.top_k: 3 on rank 0, but 4 on rank 1"),
        ({"dtype": torch.bfloat16}, "problem.dtype: torch.float32 on rank 0, but torch.bfloat16 on rank 1"),
        ({"weight_on_input": True}, "problem.weight_on_input: False on rank 0, but True on rank 1"),
        ({"activation": SwiGLU(limit=7.0)}, "problem.activation.limit: None on rank 0, but 7.0 on rank 1"),
        ({"kind": AllGather}, ": dispatcher: AllToAll on rank 0, but AllGather on rank 1"),
        ({"placement": OTHER}, "placement: .*experts=.* on rank 0, but .*experts=.* on rank 1"),
    ],
)
def test_a_layer_that_is_told_otherwise_on_one_rank_is_refused_on_all(told, words):
    found = errors(ranks_in_threads(2), lambda number, own: build(own, number, **(told if number else {})))
    for fault in found:
        assert isinstance(fault, DispatchError)
        assert fault.args == found[0].args or "kind" in told
    with pytest.raises(DispatchError, match="the ranks of a layer differ in .*" + words.removeprefix(": ")):
        raise found[0]


def test_every_difference_is_named_once_and_other_ranks_keep_out_of_it():
    def work(number, own):
        agree(own, {"a": str(number), "b": "same", "c": "x" if number == 1 else "y"}, owner="Mine")

    (fault, *others) = errors(ranks_in_threads(3), work)
    assert str(fault) == (
        "Mine: the ranks of a layer differ in a: 0 on rank 0, but 1 on rank 1, but 2 on rank 2; "
        "and in c: y on ranks 0, 2, but x on rank 1"
    )
    assert [str(other) for other in others] == [str(fault)] * 2


def test_a_fact_that_a_rank_does_not_state_is_not_compared():
    found = errors(ranks_in_threads(2), lambda n, own: agree(own, {"a": "1"} if n else {"a": "1", "b": "2"}, owner="M"))
    assert found == [None, None]


def test_a_text_that_is_no_unicode_reaches_all_ranks():
    """Such is a path with a byte that is not UTF-8, in an error of the operating system."""
    words = ["nowhere", os.fsdecode(b"nowhere-\xff")]
    found = in_threads(lambda own: gather_texts(own, words[own.rank], "Mine", "words"), ranks_in_threads(2, 20.0))
    assert found == [["nowhere", r"nowhere-\udcff"]] * 2


@pytest.mark.parametrize(
    "limits",
    [
        (SwiGLU(limit=(7.0, 8.0, 9.0)), SwiGLU(limit=10.0)),
        (SwiGLU(limit=(7.0, 7.0, 7.0)), SwiGLU(limit=(8.0, 8.0))),  # numbers, on both
        tuple(SwiGLU(limit=(1.0, 1.0, 1.0, 7.0, 7.0)).select(held) for held in EVEN.experts),
    ],
)
def test_constants_of_the_local_experts_may_differ(limits):
    assert errors(ranks_in_threads(2), lambda n, own: build(own, n, activation=limits[n])) == [None, None]


def test_another_number_of_experts_than_placed_is_refused_on_all_ranks():
    def work(number, own):
        experts = bind(layer_problem(2), local_weights(Placement(5, ((0, 1), (2, 3, 4))), 0))
        MoE(Given(None), AllToAll(own, EVEN), experts)

    for fault in errors(ranks_in_threads(2), work):
        with pytest.raises(
            DispatchError, match="local experts: 2 instead of the 3 placed there on rank 0, but as placed"
        ):
            raise fault


def test_versions_are_compared(monkeypatch):
    real = torch.__version__
    seen = iter(("9.9", real))
    monkeypatch.setattr("moesaic.dispatch.over_ranks.versions", lambda: {"version of torch": next(seen)})
    found = errors(ranks_in_threads(2), lambda number, own: build(own, number))
    assert all("version of torch: " in str(fault) and "9.9 on rank" in str(fault) for fault in found)


def test_a_long_value_is_shown_where_it_differs():
    one, other = "a" * 200 + "b" * 200, "a" * 200 + "c" * 200
    assert apart([one, other]) == f"...{'a' * 30}{'b' * 30}... on rank 0, but ...{'a' * 30}{'c' * 30}... on rank 1"


def fits(number, own):
    hidden, routing = calls([2, 3])[number]
    return AllToAll(own, EVEN), hidden, routing


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda d, h, r: (d, h.double(), r), "differ in dtype: torch.float32 on rank 0, but torch.float64 on rank 1"),
        (lambda d, h, r: (d, h[:, :20], r), "differ in hidden size: 24 on rank 0, but 20 on rank 1"),
        (
            lambda d, h, r: (d, h, Routing(r.topk_ids[:, :2], r.topk_weights[:, :2])),
            "differ in slots a token: 3 on rank 0, but 2 on rank 1",
        ),
        (
            lambda d, h, r: (d, h, Routing(r.topk_ids, r.topk_weights.double())),
            "differ in weights' dtype: torch.float32 on rank 0, but torch.float64",
        ),
        (lambda d, h, r: (AllToAll(d.ranks, OTHER), h, r), "differ in fingerprint of dispatcher and placement: "),
        (lambda d, h, r: (AllGather(d.ranks, EVEN), h, r), "differ in fingerprint of dispatcher and placement: "),
    ],
)
def test_calls_that_do_not_fit_are_refused_on_all_ranks(changed, words):
    def work(number, own):
        dispatcher, hidden, routing = changed(*fits(number, own)) if number else fits(number, own)
        dispatcher.dispatch(hidden, routing)

    found = errors(ranks_in_threads(2), work)
    for fault in found:
        assert isinstance(fault, DispatchError)
        assert words in str(fault)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (lambda h, r: (h[:1], r), BatchError, "hidden_states has 1 rows, but the routing is for 3 tokens"),
        (lambda h, r: (None, r), BatchError, "hidden_states is a NoneType"),
        (lambda h, r: (h.clone().requires_grad_(), r), GradientError, "require gradients"),
        (
            lambda h, r: (h.to("meta"), Routing(r.topk_ids.to("meta"), r.topk_weights.to("meta"))),
            DispatchError,
            r"the tokens are on meta, but Ranks\(1 of 2 on cpu, timeout=20\) exchange what is on cpu",
        ),
    ],
)
def test_tokens_that_one_rank_refuses_end_the_call_on_all(changed, error, words):
    def work(number, own):
        dispatcher, hidden, routing = fits(number, own)
        dispatcher.dispatch(*(changed(hidden, routing) if number else (hidden, routing)))

    ranks = ranks_in_threads(2, timeout=20.0)
    start = time.monotonic()
    other, own = errors(ranks, work)
    assert time.monotonic() - start < 10.0
    with pytest.raises(error, match=words):
        raise own
    with pytest.raises(DispatchError, match="AllToAll: no tokens came from rank 1, whose own error says why"):
        raise other
    assert errors(ranks, lambda number, own: AllToAll(own, EVEN).dispatch(*calls([2, 3])[number])) == [None, None]


@pytest.mark.parametrize(
    ("use", "step"),
    [
        (lambda d, call: d.dispatch(*call), "dispatch, announcing the rows"),
        (lambda d, call: d.agree(2, {}), "agree, lengths of the facts"),
    ],
)
def test_a_rank_that_does_not_come_is_named_with_the_step(use, step):
    def work(number, own):
        if number != 1:
            use(AllToAll(own, Placement.contiguous(5, 3)), calls([1, 1, 1])[number])

    start = time.monotonic()
    first, nothing, last = errors(ranks_in_threads(3, timeout=0.5), work)
    assert time.monotonic() - start < 10.0
    assert nothing is None
    for rank, fault, others in ((0, first, "1, 2"), (2, last, "0, 1")):
        assert isinstance(fault, CollectiveError)
        assert str(fault).startswith(f"AllToAll.{step}: rank {rank} did not hear from all of the ranks {others} ")
        assert "s, of 0.5 s allowed)" in str(fault)


@pytest.mark.usefixtures("unchecked")
def test_what_makes_no_dispatcher_is_refused():
    (alone,) = ranks_in_threads(1)
    for make, words in (
        (Ranks.world, "there is no process group: start with torchrun"),
        (lambda: Ranks("gloo"), "needs a ProcessGroup"),
        (lambda: Ranks(alone.group, timeout=0.0), "at least 0.001"),
        (lambda: Ranks(alone.group, timeout=1e10), r"Ranks.timeout is 1e\+10 seconds, but .* at most 1e\+09"),
        (lambda: ranks_in_threads(1, timeout=1e300), r"ranks_in_threads.timeout is 1e\+300 seconds"),
        (lambda: Ranks(alone.group, "nope"), "Ranks.device is 'nope', which torch does not reach here"),
        (
            lambda: Ranks(alone.group, "cuda:99"),
            r"Ranks.device is 'cuda:99', which torch does not reach here \(.*\): g",
        ),
        (lambda: in_threads(print), r"in_threads got arguments for \[\] ranks"),
        (lambda: in_threads(print, []), r"in_threads got arguments for \[0\] ranks"),
        (lambda: in_threads(print, [1], [1, 2]), r"in_threads got arguments for \[1, 2\] ranks"),
        (lambda: AllToAll(alone, EVEN), "AllToAll: the placement is for 2 ranks, but the group has 1"),
        (lambda: AllGather("ranks", EVEN), r"AllGather.ranks is 'ranks', .* for instance Ranks.world\(\)"),
        (lambda: AllGather(alone, 5), "AllGather.placement is 5"),
        (lambda: AllToAll(alone, Placement.contiguous(5, 1)).num_experts(4), "gives rank 0 5 experts, but .* for 4"),
        (lambda: Threads(num_experts=5, num_ranks=2, dispatchers=()), "0 dispatchers for 2 ranks"),
        (lambda: OneRank(num_experts=4, num_ranks=1, dispatcher=AllToAll(alone, Placement.contiguous(5, 1))), "for 4"),
    ):
        with pytest.raises(DispatchError, match=words):
            make()


def test_a_fleet_takes_the_dispatchers_of_its_ranks_in_order():
    left, right = ranks_in_threads(2)
    even, odd = Placement.contiguous(4, 2), Placement(4, ((1, 0), (2, 3)))
    sizes = {"num_experts": 4, "num_ranks": 2}
    for make, words in (
        (lambda: OneRank(**sizes, rank=1, dispatcher=AllToAll(left, even)), "is rank 0's, but .* that of rank 1"),
        (
            lambda: OneRank(**sizes, rank=0, dispatcher=AllToAll(left, odd)),
            r"places the experts \(1, 0\) on rank 0, but",
        ),
        (lambda: Threads(**sizes, dispatchers=(AllToAll(right, even), AllToAll(left, even))), "is rank 1's, but .* 0"),
        (
            lambda: Threads(
                **sizes,
                dispatchers=tuple(Recorded(AllToAll(own, odd), LoadRecorder(1, 4), 0) for own in (left, right)),
            ),
            r"0, but a fleet has them in order, 0 to 1 there: use Placement.contiguous",
        ),
    ):
        with pytest.raises(DispatchError, match=words):
            make()


def test_rows_of_another_batch_are_refused():
    (alone,) = ranks_in_threads(1)
    dispatcher = AllToAll(alone, Placement.contiguous(5, 1))
    batch, receipt = dispatcher.dispatch(*calls([3])[0])
    with pytest.raises(BatchError, match="give the receipt of the same dispatch"):
        dispatcher.combine(batch.rows[:1], receipt)
    with pytest.raises(BatchError, match=r"torch.float64 of shape"):
        dispatcher.combine(batch.rows.double(), receipt)


def test_dispatchers_are_values():
    (alone,) = ranks_in_threads(1)
    placement = Placement.contiguous(5, 1)
    assert AllToAll(alone, placement) == AllToAll(alone, placement)
    assert hash(AllToAll(alone, placement)) == hash(AllToAll(alone, placement))
    assert repr(AllToAll(alone, placement)).startswith("AllToAll(ranks=Ranks(0 of 1 on cpu, timeout=60), placement=")
    with pytest.raises(dataclasses.FrozenInstanceError):
        AllToAll(alone, placement).placement = EVEN
