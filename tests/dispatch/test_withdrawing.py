"""What fails on one rank before or behind the exchange: the others are told where ranks announce what they send."""

import time
from functools import partial

import pytest
import torch

from moesaic import MoE, Router, Routing, TorchGrouped, bind
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.by_expert import GroupedByExpert
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.recorded import Recorded
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.errors import BatchError, DispatchError, GradientError
from tests.dispatch.layers import HIDDEN, NUM_EXPERTS, Given, calls, layer_problem, local_weights

EVEN = Placement.contiguous(NUM_EXPERTS, 2)
EXACT = {"exact": AllToAll, "gathered": AllGather}
PADDED = {
    "padded": partial(PaddedAllToAll, max_tokens=4),
    "grouped": partial(PaddedAllToAll, max_tokens=4, laid=GroupedByExpert(alignment=4)),
    "slabs": partial(LowLatency, max_tokens=4),
}
TOLD = "no tokens came from rank 1, whose own error says why"


def outcomes(work, ranks):
    """The error of each rank, or None; all of them long before their time is over."""

    def run(own):
        try:
            work(own)
        except Exception as fault:  # noqa: BLE001 - what a rank raises is what is asked for
            return fault
        return None

    start = time.monotonic()
    found = in_threads(run, ranks)
    assert time.monotonic() - start < 10.0
    return found


class Fails(Router):
    """A router of a user's own, with a fault of its own."""

    def __call__(self, router_logits, token_ids=None):
        raise ZeroDivisionError("in the router")


class Nothing(Router):
    """A router that forgets to return."""

    def __call__(self, router_logits, token_ids=None):
        return None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize(
    ("router", "change", "error", "words"),
    [
        (Fails(), lambda h: h, ZeroDivisionError, "in the router"),
        (Nothing(), lambda h: h, BatchError, "routing is None"),
        (None, lambda h: h.bfloat16(), BatchError, "the rows are torch.bfloat16, but the problem has dtype"),
        (None, lambda h: h[:, :-1], BatchError, f"the rows have {HIDDEN - 1} columns"),
        (
            None,
            lambda h: h.to_sparse(),
            BatchError,
            "the rows are torch.sparse_coo of shape .*, but experts need a dense",
        ),
        (None, lambda h: None, BatchError, "the rows are a NoneType, but experts need a dense torch.Tensor"),
    ],
    ids=["router", "no routing", "dtype", "columns", "sparse", "None"],
)
def test_a_layer_that_fails_on_one_rank_is_an_error_on_all_and_counts_nothing(kind, router, change, error, words):
    handed, recorders = calls([3, 2]), [LoadRecorder(1, NUM_EXPERTS) for _ in range(2)]

    def build(own):
        experts = bind(layer_problem(len(EVEN.experts[own.rank])), local_weights(EVEN, own.rank))
        given = Given(handed[own.rank][1])
        recorded = Recorded(kind(own, EVEN), recorders[own.rank], 0)
        return [MoE(each, recorded, experts) for each in (given, router or given)]

    def run(layer, hidden, tokens):
        return layer(hidden, torch.zeros(tokens, NUM_EXPERTS))

    ranks = ranks_in_threads(2, timeout=20.0)
    layers = in_threads(build, ranks)

    def fail(own):
        hidden = handed[own.rank][0]
        run(layers[own.rank][own.rank], change(hidden) if own.rank else hidden, len(hidden))

    other, own = outcomes(fail, ranks)
    with pytest.raises(DispatchError, match=f"{kind.__name__}: {TOLD}"):
        raise other
    with pytest.raises(error, match=words):
        raise own
    assert not any(recorder.read().counts.any() for recorder in recorders)
    assert outcomes(lambda own: run(layers[own.rank][0], handed[own.rank][0], len(handed[own.rank][0])), ranks) == [
        None,
        None,
    ]
    assert all(recorder.read().counts.any() for recorder in recorders)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h, r: (h, None), "routing is None, but it needs a Routing"),
        (lambda h, r: (h, (r.topk_ids, r.topk_weights)), r"routing is \(tensor"),
        (lambda h, r: (h.to_sparse(), r), "hidden_states is stored as torch.sparse_coo, but it needs a dense tensor"),
        (lambda h, r: (h[:, :0], r), r"hidden_states is \(2, 0\), but tokens need at least one column"),
    ],
    ids=["None", "tuple", "sparse", "no columns"],
)
def test_tokens_that_are_none_are_an_error_on_all(kind, change, words):
    handed = calls([3, 2])

    def work(own):
        given = handed[own.rank]
        kind(own, EVEN).dispatch(*(change(*given) if own.rank else given))

    other, own = outcomes(work, ranks_in_threads(2, timeout=20.0))
    with pytest.raises(DispatchError, match=TOLD):
        raise other
    with pytest.raises(BatchError, match=words):
        raise own


@pytest.mark.parametrize(
    ("recorder", "layer", "words"),
    [
        (LoadRecorder(1, NUM_EXPERTS), 3, "layer 3 of 1"),
        (LoadRecorder(1, NUM_EXPERTS, "meta"), 0, "the ids are on cpu, but .* counts on meta"),
    ],
)
def test_what_cannot_be_counted_is_found_before_anything_is_sent(recorder, layer, words):
    handed = calls([3, 2])

    def work(own):
        given = (recorder, layer) if own.rank else (LoadRecorder(1, NUM_EXPERTS), 0)
        AllToAll(own, EVEN).dispatch_counted(*handed[own.rank], *given)

    other, own = outcomes(work, ranks_in_threads(2, timeout=20.0))
    with pytest.raises(DispatchError, match=TOLD):
        raise other
    with pytest.raises(DispatchError, match=words):
        raise own


def test_a_rank_whose_own_error_nobody_hears_raises_it_all_the_same():
    own, _ = ranks_in_threads(2, timeout=0.2)
    with pytest.raises(BatchError, match="hidden_states has 1 rows"):
        AllToAll(own, EVEN).dispatch(calls([3])[0][0][:1], calls([3])[0][1])


@pytest.mark.parametrize("kind", [*EXACT.values(), *PADDED.values()], ids=[*EXACT, *PADDED])
def test_gradients_of_the_experts_are_refused_rather_than_lost(kind):
    def run(own):
        [(hidden, routing)] = calls([3])
        dispatcher = kind(own, Placement.contiguous(NUM_EXPERTS, 1))
        weights = local_weights(dispatcher.placement, 0)
        weights.down.data.requires_grad_()
        problem = layer_problem(layout=dispatcher.layout, differentiable=True)
        layer = MoE(Given(routing), dispatcher, bind(problem, weights, backends=(TorchGrouped(),)))
        with pytest.raises(GradientError, match="the experts' rows require gradients, as those of trainable weights"):
            layer(hidden, torch.zeros(3, NUM_EXPERTS))
        with torch.no_grad():
            assert layer(hidden, torch.zeros(3, NUM_EXPERTS)).abs().sum() > 0

    in_threads(run, ranks_in_threads(1))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", ["grouped", "slabs"])
def test_rows_that_cannot_be_laid_by_expert_are_refused_before_the_exchange(name, dtype):
    own, _ = ranks_in_threads(2, timeout=0.2)  # nobody else comes
    routing = Routing(torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, 2))
    with pytest.raises(DispatchError, match=f"hidden_states is {dtype}, in which nothing is multiplied or summed"):
        PADDED[name](own, EVEN).dispatch(torch.ones(1, 4).to(dtype), routing)
