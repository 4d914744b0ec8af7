"""AllGather and AllToAll over gloo, each rank a thread: batches written out by hand, whole layers against one rank."""

import copy

import pytest
import torch

from moesaic import Local, MoE, Routing, StandardBatch, bind
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.loopback import Loopback
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import Threads, in_threads, ranks_in_threads
from moesaic.dispatch.token_transports import Gathered
from moesaic.routers import ZeroExpertTopK
from tests.dispatch.layers import NUM_EXPERTS, Given, calls, layer_problem, local_weights, one_rank, weights
from tests.tolerance import assert_close

KINDS = (AllGather, AllToAll)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

PLACEMENTS = (
    Placement.contiguous(5, 2),
    Placement.contiguous(5, 4),
    Placement(5, ((4, 0, 2), (1, 3))),
    Placement(5, ((4, 0, 2), (1, 4, 3), (3, 0))),
    Placement(5, ((0, 1, 2, 3, 4), (3,))),
)
each_placement = pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: str(p.experts))


def dispatchers(kind, placement, timeout=20.0):
    """One for each rank."""
    return [kind(ranks, placement) for ranks in ranks_in_threads(placement.num_ranks, timeout)]


def dispatch(given, handed):
    """Batch and receipt of each rank."""
    return in_threads(lambda d, call: d.dispatch(*call), given, handed)


def layer_outputs(given, handed, dtype=torch.float32, **fields):
    """What a layer makes of the tokens of each rank, which has its own experts only."""

    def run(dispatcher, call):
        held = len(dispatcher.placement.experts[dispatcher.ranks.rank])
        problem = layer_problem(held, dtype=dtype, **fields)
        experts = bind(problem, local_weights(dispatcher.placement, dispatcher.ranks.rank, dtype))
        return MoE(Given(call[1]), dispatcher, experts)(call[0], torch.zeros(len(call[0]), NUM_EXPERTS))

    return in_threads(run, given, handed)


def call(rows, ids, p):
    first = torch.tensor(rows).unsqueeze(-1)
    return torch.cat([first, first + 0.5], dim=1), Routing(torch.tensor(ids).int(), torch.tensor(p))


SMALL = [call([1.0, 2.0], [[0, 4], [3, -1]], [[0.5, 0.25], [2.0, 9.0]]), call([3.0], [[4, 3]], [[0.125, 4.0]])]
"""Two ranks of 3 and 2 experts: tokens 1 (experts 0 and 4), 2 (expert 3 alone) and 3 (experts 4 and 3)."""


def test_a_token_travels_once_to_each_rank_that_it_needs():
    (left, first), (right, second) = dispatch(dispatchers(AllToAll, Placement.contiguous(5, 2)), SMALL)
    assert isinstance(left, StandardBatch)
    assert left.rows.tolist() == [[1.0, 1.5]]
    assert left.routing.topk_ids.tolist() == [[0, -1]]
    assert right.rows.tolist() == [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
    assert right.routing.topk_ids.tolist() == [[-1, 1], [0, -1], [1, 0]]
    assert right.routing.topk_weights.tolist() == [[0.5, 0.25], [2.0, 9.0], [0.125, 4.0]]
    assert (first.sent, first.got, first.token.tolist()) == ((1, 2), (1, 0), [0, 0, 1])
    assert (second.sent, second.got, second.token.tolist()) == ((0, 1), (2, 1), [0])


def test_an_all_gather_brings_every_token_to_every_rank():
    (left, _), (right, _) = dispatch(dispatchers(AllGather, Placement.contiguous(5, 2)), SMALL)
    assert left.rows.tolist() == right.rows.tolist() == [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
    assert left.routing.topk_ids.tolist() == [[0, -1], [-1, -1], [-1, -1]]
    assert right.routing.topk_ids.tolist() == [[-1, 1], [0, -1], [1, 0]]


@each_kind
@each_placement
@pytest.mark.parametrize("on_input", [False, True])
def test_a_layer_gives_what_one_rank_gives(kind, placement, on_input):
    handed = calls([3, 0, 6, 1][: placement.num_ranks])
    outputs = layer_outputs(dispatchers(kind, placement), handed, weight_on_input=on_input)
    for got, wanted in zip(outputs, one_rank(handed, weight_on_input=on_input), strict=True):
        assert_close(got, wanted.double().numpy(), torch.float32)


@each_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_where_a_tokens_experts_are_on_one_rank_its_bits_are_those_of_one_rank(kind, dtype):
    placement = Placement(5, ((3, 0, 4), (2, 1)))
    handed = calls([4, 5], dtype=dtype)
    for _, routing in handed:  # experts of the one rank or of the other
        share = torch.tensor([[3, 0, 4], [1, 2, 9]]).int()
        routing.topk_ids.copy_(share[torch.arange(len(routing.topk_ids)) % 2])
        routing.topk_weights.nan_to_num_(0.5)

    def rows(weighted, batch):
        """Elementwise experts, so that no product depends on the other rows of a batch."""
        active = (batch.routing.topk_ids >= 0) & (batch.routing.topk_ids < len(weighted))
        each = torch.where(active, batch.routing.topk_weights, 0.0) * weighted[batch.routing.topk_ids.long() * active]
        return (batch.rows.double() * each.double().sum(1, keepdim=True)).to(dtype)

    factors = torch.tensor([0.3, 0.7, 1.1, 1.3, 1.7])
    given = dispatchers(kind, placement)
    delivered = dispatch(given, handed)
    held = [factors[list(experts)] for experts in placement.experts]
    made = [rows(own, batch) for own, (batch, _) in zip(held, delivered, strict=True)]
    outputs = in_threads(lambda d, own, receipt: d.combine(own, receipt), given, made, [r for _, r in delivered])
    for output, (hidden, routing) in zip(outputs, handed, strict=True):
        assert torch.equal(output, rows(factors, StandardBatch(hidden, routing)))


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_dispatchers_and_the_loopback_have_the_same_bits(kind, dtype):
    placement, handed = Placement.contiguous(5, 3), calls([9, 0, 7], dtype=dtype)
    loopback = Loopback(num_experts=5, num_ranks=3, transport=Gathered())
    fleet = Threads(num_experts=5, num_ranks=3, dispatchers=tuple(dispatchers(kind, placement)))
    found = []
    for each in (loopback, fleet):
        delivered = each.dispatch_all(handed)
        made = []
        for (batch, _), experts in zip(delivered, placement.experts, strict=True):
            ids = batch.routing.topk_ids
            active = ((ids >= 0) & (ids < len(experts))).sum(1, keepdim=True)
            made.append((batch.rows * active / (3 + experts[0])).to(dtype))
        found.append(each.combine_all(made, [receipt for _, receipt in delivered]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_in_half_precision(kind, dtype):
    placement, handed = PLACEMENTS[3], calls([4, 0, 6], dtype=dtype)
    outputs = layer_outputs(dispatchers(kind, placement), handed, dtype)
    for got, wanted in zip(outputs, one_rank(handed, dtype), strict=True):
        assert got.dtype == dtype
        assert_close(got, wanted.double().numpy(), dtype)


@each_kind
def test_identity_weights_are_added_on_the_tokens_own_rank(kind):
    router = ZeroExpertTopK(num_experts=5, top_k=3, num_zero_experts=4, bias=torch.zeros(9))
    placement, handed = Placement.contiguous(5, 2), calls([4, 3])
    logits = [torch.randn(len(hidden), 9, generator=torch.Generator().manual_seed(5)) for hidden, _ in handed]
    assert any((router(each).identity_weights > 0).any() for each in logits)

    def run(dispatcher, call, own):
        rank = dispatcher.ranks.rank
        experts = bind(layer_problem(len(placement.experts[rank])), local_weights(placement, rank))
        return MoE(router, dispatcher, experts)(call[0], own)

    whole = MoE(router, Local(), bind(layer_problem(), weights()))
    for got, (hidden, _), own in zip(
        in_threads(run, dispatchers(kind, placement), handed, logits), handed, logits, strict=True
    ):
        torch.testing.assert_close(got, whole(hidden, own), rtol=1e-5, atol=1e-5)


def test_replicas_share_the_tokens():
    placement = Placement(2, ((0, 1), (0,)))
    handed = [(torch.ones(6, 2), Routing(torch.zeros(6, 1).int(), torch.ones(6, 1)))] * 2
    for kind in KINDS:
        counts = [
            int((batch.routing.topk_ids == 0).sum()) for batch, _ in dispatch(dispatchers(kind, placement), handed)
        ]
        assert counts == [6, 6]


@each_kind
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_tokens_in_fp8_arrive_as_they_are(kind, dtype):
    handed = [(torch.randn(3, 5).to(dtype), Routing(torch.tensor([[0], [1], [1]]).int(), torch.ones(3, 1)))] * 2
    (left, _), (right, _) = dispatch(dispatchers(kind, Placement.contiguous(2, 2)), handed)
    assert left.rows.dtype == right.rows.dtype == dtype
    live = right.rows[right.routing.topk_ids[:, 0] == 0]
    assert torch.equal(live.float(), torch.cat([handed[0][0][1:]] * 2).float())


@each_kind
def test_calls_that_interleave_do_not_meet_and_a_copy_talks_to_the_same_ranks(kind):
    placement, handed = PLACEMENTS[2], calls([3, 2])
    given = dispatchers(kind, placement)
    again = copy.deepcopy(given)
    assert all(one.ranks is other.ranks for one, other in zip(given, again, strict=True))
    for got, wanted in zip(layer_outputs(again, handed), one_rank(handed), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@each_kind
def test_the_host_waits_once(kind, monkeypatch):
    (ranks,), ((hidden, routing),), reads = ranks_in_threads(1), calls([6]), []
    dispatcher = kind(ranks, Placement.contiguous(5, 1))

    def counted(name, original):
        def method(*args, **kwargs):
            reads.append(name)
            return original(*args, **kwargs)

        return method

    for name in ("tolist", "item", "nonzero", "cpu", "numpy", "__bool__", "__int__", "__index__", "unique"):
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    with HostReads() as mode:
        batch, receipt = dispatcher.dispatch(hidden, routing)
        assert (reads, mode.found) == (["tolist"], [])
        dispatcher.combine(batch.rows, receipt)
    assert (reads, mode.found) == (["tolist"], [])


class HostReads(torch.utils._python_dispatch.TorchDispatchMode):
    """Operators whose output's size, or value, is only known when the device is done."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        masks = [t for each in args if isinstance(each, list | tuple) for t in each if isinstance(t, torch.Tensor)]
        by_mask = name.startswith("aten::index") and any(t.dtype == torch.bool for t in masks)
        if by_mask or name in {"aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::equal"}:
            self.found.append(name)
        return function(*args, **(kwargs or {}))
