"""Placement: what it says of experts, slots and ranks, and the choice among replicas."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.local import Local
from moesaic.dispatch.placement import Placement, even_share
from moesaic.errors import DispatchError
from tests.unchecked import unchecked

REPLICATED = Placement(num_experts=4, experts=((1, 0), (2, 3, 0), (0,)))
"""Experts out of order, ranks of 2, 3 and 1 slots, expert 0 on all of them."""


@st.composite
def held(draw):
    """The experts of each rank in any placement of up to 6 experts on up to 4 ranks."""
    num_experts, num_ranks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    sets = [draw(st.sets(st.integers(0, num_experts - 1), min_size=1)) for _ in range(num_ranks)]
    for expert in set(range(num_experts)).difference(*sets):
        sets[draw(st.integers(0, num_ranks - 1))].add(expert)
    return tuple(tuple(draw(st.permutations(sorted(experts)))) for experts in sets)


def placed(ranks):
    return Placement(max(map(max, ranks)) + 1, ranks)


def test_the_first_ranks_of_a_contiguous_placement_hold_one_more():
    placement = Placement.contiguous(10, 4)
    assert placement.experts == ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9))
    assert placement.is_contiguous
    assert placement.first_slots == (0, 3, 6, 8, 10)
    assert (placement.num_ranks, placement.num_slots, placement.replicas) == (4, 10, (1,) * 10)


@given(total=st.integers(0, 50), parts=st.integers(1, 9))
def test_even_shares_follow_each_other_and_differ_by_at_most_one(total, parts):
    shares = [even_share(total, parts, part) for part in range(parts)]
    assert [number for share in shares for number in share] == list(range(total))
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_a_fleet_shares_experts_out_as_a_contiguous_placement_does():
    fleet = OneRank(num_experts=5, num_ranks=1, dispatcher=Local())
    assert (tuple(fleet.experts(0)),) == Placement.contiguous(5, 1).experts


def test_replicas_and_slots_are_counted_rank_after_rank():
    assert REPLICATED.replicas == (3, 1, 1, 1)
    assert REPLICATED.first_slots == (0, 2, 5, 6)
    assert [REPLICATED.slots_of(expert) for expert in range(4)] == [(1, 4, 5), (0,), (2,), (3,)]
    assert not REPLICATED.is_contiguous
    assert not Placement(2, ((1,), (0,))).is_contiguous
    assert Placement(3, ((0,), (1, 2))).is_contiguous


def test_slots_in_the_order_of_physical_experts():
    for slots in ([0, 2, 1, 2], (0, 2, 1, 2), torch.tensor([0, 2, 1, 2])):
        assert Placement.from_slots(3, 2, slots) == Placement(3, ((0, 2), (1, 2)))
    with unchecked(), pytest.raises(DispatchError, match=r"Placement\.from_slots\.slots is None"):
        Placement.from_slots(3, 2, None)
    with pytest.raises(DispatchError, match="3 slots on 2 ranks"):
        Placement.from_slots(3, 2, [0, 1, 2])


@pytest.mark.usefixtures("unchecked")
def test_a_placement_is_a_value():
    again = eval(repr(REPLICATED), {"Placement": Placement})  # noqa: S307
    assert again == REPLICATED
    assert hash(again) == hash(REPLICATED)
    assert Placement(2, [torch.tensor([1]), range(1)]) == Placement(2, ((1,), (0,)))
    assert Placement(2, ((0,), (1,))) != Placement(2, ((1,), (0,)))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("num_experts", "experts", "message"),
    [
        (4, ((0, 1), (2,)), "expert 3 of 4 has no slot on any of 2 ranks"),
        (2, ((0, 1, 0), (1,)), "rank 0 holds expert 0 2 times"),
        (2, ((0, 1), ()), r"rank 1 holds \(\), but it needs a tuple of at least one"),
        (2, (), "needs the experts of each rank"),
        (2, 3, "needs the experts of each rank"),
        (2, ((0,), 1), "rank 1 holds 1, but it needs a tuple"),
        (2, ((0, 1), (2,)), "rank 1 holds expert 2, but the model has 2"),
        (2, ((0, 1), (-1,)), "rank 1.expert is -1"),
        (2, ((0, True),), "rank 0.expert is True"),
        (2, ((0, 1.0),), "rank 0.expert is 1.0"),
        (0, ((0,),), "num_experts is 0"),
    ],
)
def test_what_is_no_placement_is_named(num_experts, experts, message):
    with pytest.raises(DispatchError, match=message):
        Placement(num_experts, experts)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("num_experts", "num_ranks"), [(3, 4), (0, 1), (4, 0), (4, 2.0)])
def test_contiguous_refuses_empty_ranks(num_experts, num_ranks):
    with pytest.raises(DispatchError):
        Placement.contiguous(num_experts, num_ranks)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("expert", [-1, 4, True, "0"])
def test_slots_of_an_expert_that_is_not_there(expert):
    with pytest.raises(DispatchError):
        REPLICATED.slots_of(expert)


def test_tables_are_int32_and_padded():
    tables = REPLICATED.tables()
    assert tables.slots_of.tolist() == [[1, 4, 5], [0, -1, -1], [2, -1, -1], [3, -1, -1]]
    assert tables.replicas.tolist() == [3, 1, 1, 1]
    assert tables.ranks.tolist() == [0, 0, 1, 1, 1, 2]
    assert tables.local_ids.tolist() == [0, 1, 0, 1, 2, 0]
    assert {t.dtype for t in (tables.slots_of, tables.replicas, tables.ranks, tables.local_ids)} == {torch.int32}


def test_the_width_of_tables_depends_on_sizes_only():
    even = Placement(4, ((0, 1), (2, 3), (0, 1), (2, 3)))
    hot = Placement(4, ((0, 1), (0, 2), (0, 3), (0, 1)))
    assert even.tables().slots_of.shape == hot.tables().slots_of.shape == (4, 4)
    assert Placement(4, ((0, 1, 2), (3, 0), (1,))).tables().slots_of.shape == (4, 3)
    assert Placement(4, ((0, 1), (2,), (3,))).tables().slots_of.shape == (4, 1)


@given(ranks=held(), rank=st.integers(0, 3), seed=st.integers(0, 99))
@settings(deadline=None)
def test_every_pair_goes_to_a_slot_of_its_expert(ranks, rank, seed):
    placement = placed(ranks)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-2, placement.num_experts + 2, (7, 3), generator=generator, dtype=torch.int32)
    ranks, local_ids = placement.tables().local(ids, rank)
    slots = placement.tables().slots(ids, rank)
    assert ranks.dtype == local_ids.dtype == slots.dtype == torch.int32
    for expert, chosen, local, slot in zip(
        *(t.flatten().tolist() for t in (ids, ranks, local_ids, slots)), strict=True
    ):
        if 0 <= expert < placement.num_experts:
            assert placement.experts[chosen][local] == expert
            assert slot == placement.first_slots[chosen] + local
        else:
            assert (chosen, local, slot) == (-1, -1, -1)


@pytest.mark.parametrize("wrong", [-(2**31), -1, 4, 2**31 - 1])
def test_ids_outside_the_model_are_inactive(wrong):
    ranks, local_ids = REPLICATED.tables().local(torch.tensor([[0, wrong]], dtype=torch.int32))
    assert (ranks.tolist(), local_ids.tolist()) == ([[0, -1]], [[1, -1]])


@given(ranks=held(), tokens=st.integers(0, 40), rank=st.integers(0, 3))
@settings(deadline=None)
def test_consecutive_tokens_of_an_expert_are_spread_evenly_over_its_replicas(ranks, tokens, rank):
    placement = placed(ranks)
    for expert in range(placement.num_experts):
        slots = placement.tables().slots(torch.full((tokens, 1), expert, dtype=torch.int32), rank).flatten()
        reached = [int((slots == slot).sum()) for slot in placement.slots_of(expert)]
        assert sum(reached) == tokens
        assert max(reached) - min(reached) <= 1


def test_ranks_of_one_token_each_reach_different_replicas():
    tables, one = REPLICATED.tables(), torch.zeros(1, 1, dtype=torch.int32)
    assert {int(tables.slots(one, rank)) for rank in range(3)} == {1, 4, 5}


def test_no_tokens():
    ranks, local_ids = REPLICATED.tables().local(torch.zeros(0, 2, dtype=torch.int32))
    assert ranks.shape == local_ids.shape == (0, 2)


def test_the_choice_reads_nothing_on_the_host():
    compiled = torch.export.export(_Choice(), (torch.zeros(5, 2, dtype=torch.int32),))
    named = {str(node.target) for node in compiled.graph.nodes}
    assert not [name for name in named if "item" in name or "nonzero" in name or "local_scalar" in name]


class _Choice(torch.nn.Module):
    def forward(self, ids):
        return REPLICATED.tables().local(ids, 1)
