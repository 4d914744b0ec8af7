"""PaddedAllToAll and LowLatency over gloo, each rank a thread: batches by hand, layers against one rank, and limits."""

from functools import partial

import pytest
import torch

from moesaic import MoE, PaddedStandardBatch, Routing, bind
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.by_expert import GroupedByExpert, SlabPerExpert
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import Threads, in_threads, ranks_in_threads
from moesaic.errors import BatchError, DispatchError, GradientError
from moesaic.routers import SoftmaxTopK
from tests.dispatch.layers import INNER, NUM_EXPERTS, Given, calls, layer_problem, local_weights, one_rank
from tests.dispatch.programs import ended, started
from tests.dispatch.shards import shard
from tests.dispatch.some_trials import NAMES
from tests.dispatch.test_over_ranks import PLACEMENTS, SMALL, HostReads, dispatch
from tests.tolerance import assert_close

EVEN = Placement.contiguous(5, 2)
MOST = 7
KINDS = {
    "padded": partial(PaddedAllToAll, max_tokens=MOST),
    "grouped": partial(PaddedAllToAll, max_tokens=MOST, laid=GroupedByExpert(alignment=4)),
    "slabs": partial(LowLatency, max_tokens=MOST),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def dispatchers(kind, placement, **fields):
    """One for each rank."""
    num_ranks = placement.num_ranks * fields.get("shards", 1)
    return [kind(ranks, placement, **fields) for ranks in ranks_in_threads(num_ranks, 20.0)]


def layer_outputs(given, handed, **fields):
    """What a layer makes of the tokens of each rank, which has its own experts or its shards of them only."""

    def run(own, call):
        held = len(own.placement.experts[own.share])
        problem = layer_problem(held, layout=own.layout, intermediate_size=INNER // own.shards, **fields)
        experts = bind(problem, shard(own.placement, own.ranks.rank, own.shards))
        return MoE(Given(call[1]), own, experts)(call[0], torch.zeros(len(call[0]), NUM_EXPERTS))

    return in_threads(run, given, handed)


def test_rows_of_the_ranks_are_interleaved_and_padding_lies_behind_them():
    kind = partial(PaddedAllToAll, max_tokens=3)
    (left, _), (right, _) = dispatch(dispatchers(kind, EVEN), SMALL)
    assert isinstance(right, PaddedStandardBatch)
    assert left.rows[0].tolist() == [1.0, 1.5]  # row c * 2 + r is number c of what rank r sends
    assert left.routing.topk_ids.tolist() == [[0, -1], *[[-1, -1]] * 5]
    assert left.num_valid == 1
    assert right.rows[:3].tolist() == [[1.0, 1.5], [3.0, 3.5], [2.0, 2.5]]
    assert right.routing.topk_ids.tolist() == [[-1, 1], [1, 0], [0, -1], *[[-1, -1]] * 3]
    assert right.routing.topk_weights[:3].tolist() == [[0.5, 0.25], [0.125, 4.0], [2.0, 9.0]]
    assert right.num_valid == 3
    assert right.rows.shape == (6, 2)


def test_groups_are_aligned_and_hold_their_pairs_in_order():
    kind = partial(PaddedAllToAll, max_tokens=2, laid=GroupedByExpert(alignment=4))
    (left, _), (right, _) = dispatch(dispatchers(kind, EVEN), SMALL)
    assert (left.offsets.tolist(), left.counts.tolist()) == ([0, 4, 4], [1, 0, 0])
    assert (right.offsets.tolist(), right.counts.tolist()) == ([0, 4], [2, 2])
    assert right.rows[[0, 1, 4, 5]].tolist() == [[3.0, 3.5], [2.0, 2.5], [1.0, 1.5], [3.0, 3.5]]
    assert len(left.rows) == 20  # 2 ranks * 2 tokens * 2 slots, and 3 of each of 3 experts, rounded up
    assert len(right.rows) == 16


def test_slabs_hold_the_pairs_of_each_expert():
    (left, _), (right, _) = dispatch(dispatchers(partial(LowLatency, max_tokens=2), EVEN), SMALL)
    assert (left.rows.shape, right.rows.shape) == ((3, 4, 2), (2, 4, 2))
    assert (left.counts.tolist(), right.counts.tolist()) == ([1, 0, 0], [2, 2])
    assert right.rows[:, :2].tolist() == [[[3.0, 3.5], [2.0, 2.5]], [[1.0, 1.5], [3.0, 3.5]]]


@each_kind
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: str(p.experts))
def test_a_layer_gives_what_one_rank_gives(kind, placement):
    handed = calls([3, 0, 6, 1][: placement.num_ranks])
    for got, wanted in zip(layer_outputs(dispatchers(kind, placement), handed), one_rank(handed), strict=True):
        assert_close(got, wanted.double().numpy(), torch.float32)


@pytest.mark.parametrize("kind", [AllToAll, AllGather, *KINDS.values()], ids=["exact", "gathered", *KINDS])
def test_experts_that_are_sharded_give_what_one_rank_gives(kind):
    placement, handed = Placement(5, ((4, 0, 2), (1, 4, 3))), calls([3, 0, 6, 1])
    outputs = layer_outputs(dispatchers(kind, placement, shards=2), handed)
    for got, wanted in zip(outputs, one_rank(handed), strict=True):
        assert_close(got, wanted.double().numpy(), torch.float32)


def test_a_placement_times_its_shards_needs_as_many_ranks():
    with pytest.raises(DispatchError, match="for 2 ranks, each 2 times, but the group has 3: start 4 processes, or"):
        AllToAll(ranks_in_threads(3)[0], EVEN, shards=2)
    with pytest.raises(DispatchError, match=r"AllToAll.shards is 0, but it needs a whole number of at least 1"):
        AllToAll(ranks_in_threads(2)[0], EVEN, shards=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_have_the_bits_of_all_to_all(dtype):
    placement, handed, found = Placement.contiguous(5, 3), calls([7, 0, 5], dtype=dtype), []
    for kind in (AllToAll, KINDS["padded"]):
        fleet = Threads(num_experts=5, num_ranks=3, dispatchers=tuple(dispatchers(kind, placement)))
        delivered = fleet.dispatch_all(handed)
        made = []
        for (batch, _), experts in zip(delivered, placement.experts, strict=True):
            active = (batch.routing.topk_ids >= 0).sum(1, keepdim=True)
            made.append((batch.rows * active / (3 + experts[0])).to(dtype))
        found.append(fleet.combine_all(made, [receipt for _, receipt in delivered]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@each_kind
def test_no_shape_depends_on_values_and_nothing_is_read_on_the_host(kind, monkeypatch):
    (ranks,), reads, shapes = ranks_in_threads(1), [], set()
    dispatcher = kind(ranks, Placement.contiguous(5, 1))

    def counted(name, original):
        def method(*args, **kwargs):
            reads.append(name)
            return original(*args, **kwargs)

        return method

    for name in ("tolist", "item", "nonzero", "cpu", "numpy", "__bool__", "__int__", "__index__", "unique"):
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    for seed, number in ((0, 6), (1, 2), (2, 0)):
        [(hidden, routing)] = calls([number], seed=seed)
        with HostReads() as mode:
            batch, receipt = dispatcher.dispatch(hidden, routing)
            output = dispatcher.combine(batch.rows, receipt)
        assert (reads, mode.found) == ([], [])
        assert output.shape == hidden.shape
        shapes.add(tuple(batch.rows.shape))
    assert len(shapes) == 1
    assert not dispatcher.synchronises


def test_a_token_without_room_is_nan_and_others_are_right():
    """All four tokens of rank 0 need rank 1, which has room for three of each rank."""
    kind = partial(PaddedAllToAll, max_tokens=4, max_rows=3)
    ones = torch.ones(4, 1)
    handed = [(ones.repeat(1, 2), Routing(torch.full((4, 1), expert).int(), ones)) for expert in (4, 0)]
    handed[1] = (handed[1][0][:2], Routing(torch.tensor([[0], [4]]).int(), ones[:2]))
    given = dispatchers(kind, EVEN)
    delivered = dispatch(given, handed)
    assert [batch.rows.shape for batch, _ in delivered] == [(6, 2)] * 2
    outputs = in_threads(lambda d, pair: d.combine(pair[0].rows, pair[1]), given, delivered)
    assert outputs[0][:3].tolist() == [[1.0, 1.0]] * 3
    assert outputs[0][3].isnan().all()
    assert outputs[1].tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    "kind", [partial(PaddedAllToAll, laid=GroupedByExpert()), KINDS["slabs"]], ids=["grouped", "slabs"]
)
def test_pairs_without_room_make_their_token_nan(kind):
    """Seven slots of every token name the one expert of a rank that has a row for each token."""
    placement = Placement(2, ((0,), (1,)))
    ids = torch.tensor([[0] * 7, [1] + [-1] * 6]).int()
    handed = [(torch.ones(2, 3), Routing(ids, torch.ones(2, 7)))] * 2
    given = dispatchers(partial(kind, max_tokens=2), placement)
    delivered = dispatch(given, handed)
    outputs = in_threads(lambda d, pair: d.combine(pair[0].rows, pair[1]), given, delivered)
    for output in outputs:
        assert output[0].isnan().all()
        assert output[1].tolist() == [1.0] * 3


@each_kind
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda h, r: (h.repeat(4, 1), Routing(*(t.repeat(4, 1) for t in (r.topk_ids, r.topk_weights)))), DispatchError,
         "rank 0 hands in 8 tokens, but max_tokens is 7: raise it on all ranks"),
        (lambda h, r: (h[:1], r), BatchError, "hidden_states has 1 rows, but the routing is for 2 tokens"),
        (lambda h, r: (h.requires_grad_(), r), GradientError, "the tokens require gradients"),
        (lambda h, r: (h.to("meta"), Routing(r.topk_ids.to("meta"), r.topk_weights.to("meta"))), DispatchError,
         "the tokens are on meta, but Ranks"),
    ],
)  # fmt: skip
def test_tokens_that_do_not_fit_are_refused_before_anything_is_sent(kind, change, error, words):
    (ranks,) = ranks_in_threads(1)
    dispatcher = kind(ranks, Placement.contiguous(5, 1))
    [given] = calls([2])
    with pytest.raises(error, match=words):
        dispatcher.dispatch(*change(*given))
    batch, receipt = dispatcher.dispatch(*calls([2])[0])  # and the group is as good as before
    assert dispatcher.combine(batch.rows, receipt).shape == (2, given[0].shape[1])


@each_kind
def test_rows_of_another_batch_are_refused(kind):
    (ranks,) = ranks_in_threads(1)
    dispatcher = kind(ranks, Placement.contiguous(5, 1))
    batch, receipt = dispatcher.dispatch(*calls([2])[0])
    for rows in (batch.rows[:-1], batch.rows.double()):
        with pytest.raises(BatchError, match="give the receipt of the same dispatch, with the rows of its batch"):
            dispatcher.combine(rows, receipt)


def test_what_the_ranks_are_told_is_compared_when_a_layer_is_built():
    def run(one, other):
        def build(ranks):
            with pytest.raises(DispatchError) as fault:
                (one if ranks.rank == 0 else other)(ranks, EVEN).agree(len(EVEN.experts[ranks.rank]), {})
            return str(fault.value)

        [text] = set(in_threads(build, ranks_in_threads(2)))
        return text

    padded, grouped, _ = KINDS.values()
    assert "rows to each rank: 7 on rank 0, but 5 on rank 1" in run(padded, partial(padded, max_rows=5))
    assert "arrangement: AsArrived() on rank 0, but GroupedByExpert(" in run(padded, grouped)


@each_kind
def test_routers_that_choose_other_numbers_of_experts_are_told_when_a_layer_is_built(kind):
    """No call notices it: rows of 2 and of 3 slots have as many bytes here, and would be read wrongly."""

    def build(own):
        dispatcher, held = kind(own, EVEN), EVEN.experts[own.rank]
        experts = bind(layer_problem(len(held), layout=dispatcher.layout), local_weights(EVEN, own.rank))
        with pytest.raises(DispatchError) as fault:
            MoE(SoftmaxTopK(NUM_EXPERTS + own.rank, 2 + own.rank), dispatcher, experts)
        return str(fault.value)

    [text] = set(in_threads(build, ranks_in_threads(2, 20.0)))
    assert text.endswith(
        "the ranks of a layer differ in router.top_k: 2 on rank 0, but 3 on rank 1; and in router.num_experts: 5 on "
        "rank 0, but 6 on rank 1"
    )


@pytest.mark.usefixtures("unchecked")
def test_fields():
    (ranks,) = ranks_in_threads(1)
    placement = Placement.contiguous(5, 1)
    with pytest.raises(DispatchError, match=r"LowLatency.max_tokens is 0, but it needs a whole number of at least 1"):
        LowLatency(ranks, placement, 0)
    with pytest.raises(DispatchError, match=r"PaddedAllToAll.max_rows is 1.5, but it needs a whole number"):
        PaddedAllToAll(ranks, placement, 4, max_rows=1.5)
    with pytest.raises(DispatchError, match=r"PaddedAllToAll.laid is SlabPerExpert\(.*LowLatency makes"):
        PaddedAllToAll(ranks, placement, 4, SlabPerExpert())
    with pytest.raises(DispatchError, match=r"GroupedByExpert.alignment is 0, but it needs a whole number"):
        GroupedByExpert(0)
    with pytest.raises(DispatchError, match=r"LowLatency.weight_on_input is 1, but it needs True or False"):
        LowLatency(ranks, placement, 4, weight_on_input=1)
    assert PaddedAllToAll(ranks, placement, 4, max_rows=9).rows_to_each == 4


@pytest.mark.dist
def test_two_processes_conform_and_are_told_why_they_share_no_memory(tmp_path):
    given = [("tests.dispatch.padded_process", str(rank), "2", str(tmp_path)) for rank in range(2)]
    (reason, checks), other = ended([started(*each, interpret=False) for each in given])
    assert other == [reason, checks]
    assert reason.startswith("open_window, what each rank has: ranks 0, 1: DispatchError: its tensors are on cpu, but ")
    assert int(checks.removesuffix(" checks passed")) == 5 * len(NAMES)
