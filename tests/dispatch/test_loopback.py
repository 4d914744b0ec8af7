"""Loopback: what lies where under every transport, written out by hand; whole layers against the numpy oracle."""

import dataclasses

import numpy as np
import pytest
import torch

from moesaic import (
    BatchedBatch,
    BatchedExperts,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    MoE,
    PaddedStandard,
    PaddedStandardBatch,
    Reference,
    Router,
    Routing,
    Standard,
    StandardBatch,
    bind,
)
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.local import Local
from moesaic.dispatch.loopback import Loopback
from moesaic.dispatch.loopback_rank import LoopbackRank, Peer
from moesaic.dispatch.row_transports import Expanded, Slabs
from moesaic.dispatch.token_transports import Deduplicated, Gathered, RankMajor
from moesaic.errors import BatchError, DispatchError
from tests.backends import example, numpy_oracle
from tests.tolerance import assert_close
from tests.unchecked import unchecked

TRANSPORTS = (
    Gathered(),
    Deduplicated(max_tokens=6),
    RankMajor(max_tokens=6),
    Expanded(),
    Expanded(alignment=8),
    Expanded(alignment=4, max_tokens=6),
    Slabs(max_tokens=6),
)
each_transport = pytest.mark.parametrize("transport", TRANSPORTS, ids=repr)


def call(rows, ids, weights=None):
    """One rank's hidden states (two columns, the second is the first plus 0.5) and routing."""
    first = torch.tensor(rows, dtype=torch.float32)
    given = torch.tensor(ids, dtype=torch.int32)
    p = torch.tensor(weights if weights is not None else np.ones(tuple(given.shape)), dtype=torch.float32)
    return torch.stack([first, first + 0.5], dim=1), Routing(given, p)


SMALL = [call([1.0, 2.0], [[0, 4], [3, -1]], [[0.5, 0.25], [2.0, 9.0]]), call([3.0], [[4, 3]], [[0.125, 4.0]])]
"""Two ranks of 3 and 2 experts: tokens 1 (experts 0 and 4), 2 (expert 3 alone) and 3 (experts 4 and 3)."""


def small(transport, **changes):
    """Batches of both ranks."""
    fleet = Loopback(num_experts=5, num_ranks=2, transport=transport, **changes)
    return [batch for batch, _ in fleet.dispatch_all(SMALL)]


def first_column(rows):
    """The first of the two columns, None where it is NaN; the second is checked on the way."""
    values = rows.flatten(0, -2)
    assert torch.equal(values[:, 1].nan_to_num(9.0), (values[:, 0] + 0.5).nan_to_num(9.0))
    return [None if np.isnan(v) else v for v in values[:, 0].tolist()]


def test_experts_are_spread_as_evenly_as_possible():
    fleet = Loopback(num_experts=10, num_ranks=4, transport=Gathered())
    assert [fleet.experts(rank) for rank in range(4)] == [range(3), range(3, 6), range(6, 8), range(8, 10)]
    wide = Loopback(num_experts=30, num_ranks=8, transport=Gathered())
    assert [len(wide.experts(rank)) for rank in range(8)] == [4, 4, 4, 4, 4, 4, 3, 3]


def test_gathered_tokens_keep_foreign_ids_outside_of_the_rank():
    left, right = small(Gathered())
    assert left.layout == right.layout == Standard()
    assert first_column(left.rows) == first_column(right.rows) == [1.0, 2.0, 3.0]
    assert left.routing.topk_ids.tolist() == [[0, 4], [3, -1], [4, 3]]
    assert right.routing.topk_ids.tolist() == [[-3, 1], [0, -4], [1, 0]]
    assert right.routing.topk_weights.tolist() == [[0.5, 0.25], [2.0, 9.0], [0.125, 4.0]]


def test_ids_at_the_ends_of_int32_do_not_wrap_around():
    routing = Routing(torch.tensor([[-(2**31), 2**31 - 1]], dtype=torch.int32), torch.ones(1, 2))
    fleet = Loopback(num_experts=4, num_ranks=2, transport=Gathered())
    _, (right, _) = fleet.dispatch_all([(torch.ones(1, 2), routing), SMALL[1]])
    assert right.routing.topk_ids.tolist()[0] == [-(2**31), 2**31 - 3]


def test_a_token_arrives_once_on_each_rank_that_it_needs():
    left, right = small(Deduplicated(max_tokens=2))
    assert isinstance(left, PaddedStandardBatch)
    assert left.layout == PaddedStandard()
    assert first_column(left.rows) == [1.0, None, None, None]
    assert left.routing.topk_ids.tolist() == [[0, -1], [-1, -1], [-1, -1], [-1, -1]]
    assert left.num_valid == 1
    assert first_column(right.rows) == [1.0, 2.0, 3.0, None]
    assert right.routing.topk_ids.tolist() == [[-1, 1], [0, -1], [1, 0], [-1, -1]]
    assert right.routing.topk_weights.nan_to_num(7.0).tolist() == [[7.0, 0.25], [2.0, 7.0], [0.125, 4.0], [7.0, 7.0]]
    assert right.num_valid == 3


def test_rank_major_rows_have_padding_between_the_ranks():
    left, right = small(RankMajor(max_tokens=3))
    assert first_column(left.rows) == [1.0, *(None,) * 5]
    assert first_column(right.rows) == [1.0, 2.0, None, 3.0, None, None]
    assert right.routing.topk_ids.tolist() == [[-1, 1], [0, -1], [-1, -1], [1, 0], [-1, -1], [-1, -1]]
    assert right.num_valid is None


@pytest.mark.parametrize(("max_tokens", "tail"), [(None, 0), (2, 8)])
def test_expanded_rows_are_grouped_and_aligned(max_tokens, tail):
    # The worst case: 2 ranks * 2 tokens * min(2, 2) slots + 3 * 2, up to a multiple of 4, is 16 rows.
    left, right = small(Expanded(alignment=4, max_tokens=max_tokens))
    assert isinstance(right, GroupedBatch)
    assert right.layout == GroupedContiguous(4)
    assert (left.offsets.tolist(), left.counts.tolist()) == ([0, 4, 4], [1, 0, 0])
    assert (right.offsets.tolist(), right.counts.tolist()) == ([0, 4], [2, 2])
    assert first_column(right.rows) == [2.0, 3.0, None, None, 1.0, 3.0, *(None,) * (2 + tail)]


def test_slabs_hold_each_experts_rows():
    left, right = small(Slabs(max_tokens=2))
    assert isinstance(right, BatchedBatch)
    assert right.layout == BatchedExperts()
    assert left.rows.shape == (3, 4, 2)
    assert left.counts.tolist() == [1, 0, 0]
    assert right.counts.tolist() == [2, 2]
    assert first_column(right.rows) == [2.0, 3.0, None, None, 1.0, 3.0, None, None]


def test_the_weight_goes_into_the_rows_where_the_fleet_says_so():
    fleet = Loopback(num_experts=5, num_ranks=2, transport=Expanded(), weight_on_input=True)
    delivered = fleet.dispatch_all(SMALL)
    (left, _), (right, _) = delivered
    assert left.rows[:, 0].tolist() == [0.5]
    assert right.rows[:, 0].tolist() == [4.0, 12.0, 0.25, 0.375]
    outputs = fleet.combine_all([left.rows, right.rows], [receipt for _, receipt in delivered])
    assert outputs[0][:, 0].tolist() == [0.75, 4.0]
    assert outputs[1][:, 0].tolist() == [12.375]


def test_combine_weights_and_sums_each_token():
    fleet = Loopback(num_experts=5, num_ranks=2, transport=Slabs(max_tokens=2))
    delivered = fleet.dispatch_all(SMALL)
    outputs = fleet.combine_all([batch.rows for batch, _ in delivered], [receipt for _, receipt in delivered])
    assert outputs[0][:, 0].tolist() == [0.75, 4.0]
    assert outputs[1][:, 0].tolist() == [0.375 + 12.0]


@each_transport
@pytest.mark.parametrize("hidden", [2, 64, 65])
def test_rows_travel_in_wider_memory_and_are_cut_back(transport, hidden):
    fleet = Loopback(num_experts=3, num_ranks=2, transport=transport, hidden_multiple=64)
    given = [(torch.arange(hidden).float().expand(2, hidden), Routing(torch.zeros(2, 1).int(), torch.ones(2, 1)))] * 2
    batch, _ = fleet.dispatch_all(given)[0]
    assert batch.rows.shape[-1] == hidden
    assert batch.rows.stride(-2) == (128 if hidden == 65 else 64)
    assert torch.equal(batch.rows.reshape(-1, hidden)[1], torch.arange(hidden).float())


@pytest.mark.parametrize("poison", [float("nan"), 1e4, -float("inf")])
def test_undefined_memory_holds_the_poison(poison):
    left, right = small(Deduplicated(max_tokens=2), poison=poison)
    wanted = torch.full((3, 2), poison)
    torch.testing.assert_close(left.rows[1:], wanted, equal_nan=True)
    torch.testing.assert_close(left.routing.topk_weights[1:], wanted, equal_nan=True)
    torch.testing.assert_close(right.routing.topk_weights[0, 0], wanted[0, 0], equal_nan=True)
    (_, slabs) = small(Slabs(max_tokens=2), poison=poison)
    torch.testing.assert_close(slabs.rows[0, 2:], wanted[:2], equal_nan=True)


# Whole layers: 10 experts on 4 ranks that hand in 3, 0, 5 and 1 tokens.

TOKENS = (3, 0, 5, 1)
WHOLE = example.problem(num_experts=10, hidden_size=65, intermediate_size=33, bias=True)
GARBAGE = (-1, 10, 15, -9, 2**31 - 1, -(2**31))


def whole_calls(seed=3, *, distinct=False):
    """Every rank's tokens, and all of them together."""
    g = np.random.default_rng(seed)
    total = sum(TOKENS)
    ids = g.integers(0, 10, (total, 3))
    if distinct:
        ids = np.stack([g.permutation(10)[:3] for _ in range(total)])
    ids = np.where(g.random(ids.shape) < 0.25, g.choice(GARBAGE, ids.shape), ids)
    rows, p = example.rows(WHOLE, total, seed), torch.from_numpy(g.random(ids.shape).astype(np.float32) + 0.1)
    routing = Routing(torch.from_numpy(ids.astype(np.int32)), p)
    split = zip(rows.split(TOKENS), routing.topk_ids.split(TOKENS), p.split(TOKENS), strict=True)
    return [(r, Routing(i, w)) for r, i, w in split], rows, routing


def local_layer(fleet, rank, given, *, on_input=False):
    """The bound experts of a rank, with a reference that checks what it is handed."""
    own = slice(fleet.experts(rank).start, fleet.experts(rank).stop)
    fields = {"num_experts": len(fleet.experts(rank)), "layout": fleet.layout, "weight_on_input": on_input}
    problem = dataclasses.replace(WHOLE, duplicate_ids=True, **fields)
    held = ExpertWeights.plain(
        given.gate_up.data[own],
        given.down.data[own],
        gate_up_bias=given.gate_up_bias[own],
        down_bias=given.down_bias[own],
    )
    return bind(problem, held, backends=(Reference(strict=True),))


def expected(rows, routing, given, *, on_input=False):
    """The output of one rank with all experts."""
    oracle = example.as_oracle(dataclasses.replace(WHOLE, weight_on_input=on_input), given)
    return numpy_oracle.tokens(
        rows.double().numpy(), routing.topk_ids.numpy(), routing.topk_weights.double().numpy(), oracle
    )


@each_transport
@pytest.mark.parametrize("on_input", [False, True])
def test_every_rank_gets_what_one_rank_computes(transport, on_input):
    fleet = Loopback(
        num_experts=10,
        num_ranks=4,
        transport=transport,
        hidden_multiple=32,
        weight_on_input=on_input and not transport.layout.has_routing,
    )
    given = example.weights(WHOLE)
    calls, rows, routing = whole_calls(distinct=isinstance(transport, Expanded | Slabs))
    delivered = fleet.dispatch_all(calls)
    made = [
        local_layer(fleet, rank, given, on_input=on_input and transport.layout.has_routing)(batch)
        for rank, (batch, _) in enumerate(delivered)
    ]
    outputs = fleet.combine_all(made, [receipt for _, receipt in delivered])
    assert [len(output) for output in outputs] == list(TOKENS)
    assert_close(torch.cat(outputs), expected(rows, routing, given, on_input=on_input), torch.float32)


class Given(Router):
    """A router that was told the answer."""

    def __init__(self, routing):
        self.routing = routing

    def __call__(self, router_logits, token_ids=None):
        return self.routing


@each_transport
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_layer_runs_on_one_rank_of_a_loopback(transport, rank):
    fleet = Loopback(num_experts=10, num_ranks=4, transport=transport)
    given = example.weights(WHOLE)
    calls, rows, routing = whole_calls(distinct=isinstance(transport, Expanded | Slabs))
    layers = [local_layer(fleet, r, given) for r in range(4)]
    peers = tuple(Peer(*calls[r], layers[r]) for r in range(4) if r != rank)
    moe = MoE(Given(calls[rank][1]), LoopbackRank(fleet, rank, peers), layers[rank])
    output = moe(calls[rank][0], torch.zeros(TOKENS[rank], 10))
    wanted = np.split(expected(rows, routing, given), np.cumsum(TOKENS)[:-1])[rank]
    assert_close(output, wanted, torch.float32)


def test_a_rank_says_how_many_experts_it_reaches():
    fleet = Loopback(num_experts=10, num_ranks=4, transport=Gathered())
    peers = (Peer(*SMALL[0], lambda batch: batch.rows),) * 3
    assert LoopbackRank(fleet, 3, peers).num_experts(2) == 10
    assert LoopbackRank(fleet, 3, peers).synchronises
    with pytest.raises(DispatchError, match="holds 2 experts, but the problem is for 3"):
        LoopbackRank(fleet, 3, peers).num_experts(3)
    with pytest.raises(DispatchError, match="2 peers for 4 ranks"):
        LoopbackRank(fleet, 3, peers[:2])
    with unchecked():
        for wrong in (None, (1, 2, 3)):
            with pytest.raises(DispatchError, match=r"LoopbackRank\.peers is .*, for instance \(Peer\("):
                LoopbackRank(fleet, 3, wrong)


@pytest.mark.usefixtures("unchecked")
def test_values_are_plain_and_their_reprs_evaluate():
    names = {c.__name__: c for c in (Gathered, Deduplicated, RankMajor, Expanded, Slabs)}
    for transport in (*TRANSPORTS, Slabs(np.int64(3)), Expanded(np.int32(2), np.int64(3))):
        assert eval(repr(transport), names) == transport  # noqa: S307
    one, other = (Loopback(num_experts=np.int64(4), num_ranks=2, transport=Gathered()) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Loopback(num_experts=3, num_ranks=4, transport=Gathered()), "4 ranks share 3 experts"),
        (lambda: Loopback(num_experts=0, num_ranks=1, transport=Gathered()), "at least 1"),
        (lambda: Loopback(num_experts=4, num_ranks=2, transport="slabs"), r"Gathered\(\)"),
        (lambda: Loopback(num_experts=4, num_ranks=2, transport=Gathered(), hidden_multiple=0), "hidden_multiple"),
        (
            lambda: Loopback(num_experts=4, num_ranks=2, transport=Gathered(), weight_on_input=True),
            "the experts multiply",
        ),
        (lambda: Slabs(0), "Slabs.max_tokens"),
        (lambda: Deduplicated(2.5), "Deduplicated.max_tokens"),
        (lambda: Expanded(0), "Expanded.alignment"),
        (lambda: Expanded(8, 0), "Expanded.max_tokens"),
        (lambda: Loopback(num_experts=4, num_ranks=2, transport=Gathered()).experts(2), "rank 2 of 2"),
        (lambda: Loopback(num_experts=5, num_ranks=2, transport=Gathered()).dispatch_all(SMALL[:1]), "1 calls for 2"),
        (lambda: OneRank(num_experts=4, num_ranks=2, dispatcher=Local()), "reaches 2 experts"),
        (lambda: OneRank(num_experts=4, num_ranks=1, dispatcher="local"), r"Local\(\)"),
    ],
)
def test_what_makes_no_fleet_is_refused(make, words):
    with pytest.raises(DispatchError, match=words):
        make()


def fleet_of(transport):
    return Loopback(num_experts=5, num_ranks=2, transport=transport)


REPEATED = call([1.0, 2.0], [[0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("transport", "calls", "words"),
    [
        (Deduplicated(1), SMALL, "rank 0 hands in 2 tokens, but .*at most 1"),
        (RankMajor(1), SMALL, "at most 1"),
        (Slabs(1), SMALL, "at most 1"),
        (Expanded(max_tokens=1), SMALL, "at most 1"),
        (Slabs(2), [REPEATED, REPEATED], "expert 0 gets 8 rows, but its slab holds 4"),
        (Expanded(max_tokens=2), [call([1.0, 2.0], [[0] * 5] * 2)] * 2, "20 rows arrive in a buffer of 12"),
        (Gathered(), [SMALL[0], call([1.0], [[0]])], "topk_ids of rank 1 is torch.int32 with 1 columns"),
        (Gathered(), [SMALL[0], (torch.ones(1, 3), SMALL[1][1])], "hidden_states of rank 1 .* 3 columns"),
        (Gathered(), [SMALL[0], (torch.ones(1, 2).half(), SMALL[1][1])], "hidden_states of rank 1 is torch.float16"),
    ],
)
def test_calls_that_do_not_fit_are_refused(transport, calls, words):
    with pytest.raises(BatchError, match=words):
        fleet_of(transport).dispatch_all(calls)


def test_rows_and_receipts_of_other_calls_are_refused():
    fleet = fleet_of(Slabs(2))
    delivered = fleet.dispatch_all(SMALL)
    rows, receipts = [batch.rows for batch, _ in delivered], [receipt for _, receipt in delivered]
    with pytest.raises(DispatchError, match="1 rows and 2 receipts for 2 ranks"):
        fleet.combine_all(rows[:1], receipts)
    with pytest.raises(BatchError, match=r"rank 0 are \(2, 4, 2\), but its receipt is for \(3, 4, 2\)"):
        fleet.combine_all(rows[::-1], receipts)
    fewer = fleet.dispatch_all([SMALL[1], SMALL[1]])
    with pytest.raises(BatchError, match="the receipts of one dispatch"):
        fleet.combine_all(rows, [receipts[0], fewer[1][1]])


def test_the_batch_of_a_single_rank_is_a_copy():
    fleet = Loopback(num_experts=5, num_ranks=1, transport=Gathered())
    ((batch, receipt),) = fleet.dispatch_all(SMALL[:1])
    assert isinstance(batch, StandardBatch)
    batch.rows.zero_()
    batch.routing.topk_ids.zero_()
    batch.routing.topk_weights.zero_()
    assert SMALL[0][0][0, 0] == 1.0
    assert SMALL[0][1].topk_ids.tolist() == [[0, 4], [3, -1]]
    assert SMALL[0][1].topk_weights.tolist() == [[0.5, 0.25], [2.0, 9.0]]
    (output,) = fleet.combine_all([batch.rows], [receipt])
    assert output.untyped_storage().data_ptr() != batch.rows.untyped_storage().data_ptr()
