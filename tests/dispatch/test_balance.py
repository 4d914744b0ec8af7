"""balance: the published example, every rule, bad input, and the speed and quality that are asked of it."""

import itertools
import time

import pytest
import torch

from moesaic.dispatch.balance import balance
from moesaic.dispatch.balancedness import planned_balancedness, realised_balancedness
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.stability import arrivals, settled
from moesaic.errors import DispatchError

EPLB_LOAD = torch.tensor(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)
EPLB_SLOTS = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]
"""The example of the README of https://github.com/deepseek-ai/EPLB: 16 replicas, 4 groups, 2 nodes, 8 GPUs."""


def zipf(layers, num_experts, exponent, seed=0):
    """Popularities of rank r in proportion to `r ** -exponent`, every layer in an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    popularity = torch.arange(1, num_experts + 1, dtype=torch.float64) ** -exponent
    return torch.stack([popularity[torch.randperm(num_experts, generator=generator)] for _ in range(layers)])


def greedy(row, num_slots, num_ranks):
    """EPLB's flat plan in plain Python: its balancedness, which duplicates on a rank may help."""
    counts = [1] * len(row)
    for _ in range(num_slots - len(row)):
        counts[max(range(len(row)), key=lambda e: (row[e] / counts[e], -e))] += 1
    items = sorted((row[e] / counts[e] for e in range(len(row)) for _ in range(counts[e])), reverse=True)
    carried, room = [0.0] * num_ranks, [num_slots // num_ranks] * num_ranks
    for item in items:
        rank = min((r for r in range(num_ranks) if room[r]), key=lambda r: (carried[r], r))
        carried[rank] += item
        room[rank] -= 1
    return sum(carried) / num_ranks / max(carried)


def as_sets(placement):
    return sorted(tuple(sorted(experts)) for experts in placement.experts)


def test_the_published_example():
    plans = balance(EPLB_LOAD, 16, 8, 2, groups=4)
    published = [Placement.from_slots(12, 8, slots) for slots in EPLB_SLOTS]
    assert [plan.replicas for plan in plans] == [plan.replicas for plan in published]
    assert [as_sets(plan) for plan in plans] == [as_sets(plan) for plan in published]
    torch.testing.assert_close(planned_balancedness(EPLB_LOAD, plans), planned_balancedness(EPLB_LOAD, published))
    assert [round(value, 3) for value in planned_balancedness(EPLB_LOAD, plans).tolist()] == [0.828, 0.805]


def test_groups_stay_on_a_node():
    for plan in balance(EPLB_LOAD, 16, 8, 2, groups=4):
        nodes = [{e // 3 for rank in plan.experts[start : start + 4] for e in rank} for start in (0, 4)]
        assert [len(node) for node in nodes] == [2, 2]
        assert not nodes[0] & nodes[1]


def test_a_plan_that_need_not_keep_groups_together_is_better():
    flat, grouped = balance(EPLB_LOAD, 16, 8), balance(EPLB_LOAD, 16, 8, 2, groups=4)
    assert (planned_balancedness(EPLB_LOAD, flat) > planned_balancedness(EPLB_LOAD, grouped)).all()


def test_each_expert_a_group_keeps_its_replicas_on_a_node():
    for plan in balance(EPLB_LOAD, 16, 8, 2, groups=12):
        assert not {e for rank in plan.experts[:4] for e in rank} & {e for rank in plan.experts[4:] for e in rank}


@pytest.mark.parametrize(
    ("load", "slots", "ranks"),
    [([1.0, 1, 1, 1], 8, 4), ([10.0, 0, 0, 0], 6, 2), ([1e308] * 4, 8, 4), ([0.0] * 3 + [5e-324], 7, 4)],
)
def test_replicas_of_an_expert_are_on_different_ranks(load, slots, ranks):
    (plan,) = balance(torch.tensor(load, dtype=torch.float64), slots, ranks)
    assert plan.num_slots == slots  # and Placement refuses two on one rank
    assert max(plan.replicas) <= ranks


@pytest.mark.parametrize("value", [0.0, 1.0, 7.5])
def test_equal_loads_get_equal_replicas(value):
    (plan,) = balance(torch.full((8,), value), 20, 4)
    assert sorted(plan.replicas) == [2] * 4 + [3] * 4
    assert planned_balancedness(torch.ones(8), (plan,)) > 0.9


def test_experts_without_load_share_what_the_others_cannot_take():
    (plan,) = balance(torch.tensor([9.0, 0, 0, 0, 0]), 10, 2)
    assert plan.replicas == (2, 2, 2, 2, 2)
    (plan,) = balance(torch.tensor([9.0, 0, 0, 0, 0]), 11, 3)
    assert plan.replicas[0] == 3
    assert set(plan.replicas[1:]) == {2}


def test_as_many_slots_as_experts_place_without_replicas():
    plans = balance(EPLB_LOAD, 12, 4)
    assert all(plan.replicas == (1,) * 12 for plan in plans)
    in_order = (Placement.contiguous(12, 4),) * 2
    assert (planned_balancedness(EPLB_LOAD, plans) > planned_balancedness(EPLB_LOAD, in_order) + 0.2).all()


def test_slots_that_the_ranks_do_not_divide_are_shared_out_in_order():
    (plan,) = balance(torch.arange(1.0, 8), 10, 4)
    assert [len(experts) for experts in plan.experts] == [3, 3, 2, 2]


def test_one_rank_and_a_slot_on_every_rank():
    assert balance(torch.arange(3.0), 3, 1) == (Placement(3, ((0, 1, 2),)),)
    assert balance(torch.arange(3.0), 12, 4) == (Placement(3, ((0, 1, 2),) * 4),)


def test_layers_are_planned_alone():
    load = zipf(5, 16, 1.0)
    together = balance(load, 20, 4)
    assert together == tuple(plan for row in load for plan in balance(row, 20, 4))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.bfloat16])
def test_the_load_may_have_any_type_and_unit(dtype):
    load = torch.tensor([[8, 1, 2, 4], [1, 1, 16, 2]])
    assert balance(load.to(dtype), 6, 2) == balance(load.double() * 2.0**-30, 6, 2)


@pytest.mark.parametrize("exponent", [1020, 60, -60, -1060])
def test_loads_whose_sum_overflows_or_that_are_subnormal_are_planned_alike(exponent):
    load = torch.tensor([8.0, 5, 2, 1, 1, 1], dtype=torch.float64)
    assert balance(load * 2.0**exponent, 10, 4) == balance(load, 10, 4)


def test_the_load_is_not_changed_and_a_plan_repeats():
    load = zipf(3, 32, 1.2)
    kept = load.clone()
    assert balance(load, 40, 8) == balance(load, 40, 8)
    assert torch.equal(load, kept)


@pytest.mark.parametrize(
    ("load", "sizes", "message"),
    [
        (torch.tensor([[1.0, -2.0]]), (2, 1), "load of expert 1 in layer 0 is -2.0"),
        (torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), (2, 1), "load of expert 0 in layer 1 is nan"),
        (torch.tensor([1.0, float("inf")]), (2, 1), "load of expert 1 in layer 0 is inf"),
        (torch.ones(1, 2, 3), (3, 1), r"float32 of shape \(1, 2, 3\)"),
        (torch.ones(2, 0), (3, 1), r"of shape \(2, 0\)"),
        (torch.tensor(3.0), (3, 1), r"of shape \(\)"),
        (torch.ones(2, dtype=torch.complex64), (2, 1), "complex64"),
        (torch.ones(2, dtype=torch.bool), (2, 1), "bool"),
        ([[1.0, 2.0]], (2, 1), "needs a Tensor"),
        (torch.ones(4), (3, 2), "num_slots is 3, but 4 experts"),
        (torch.ones(4), (5, 6), "num_slots is 5, but 6 ranks"),
        (torch.ones(4), (9, 2), "num_slots is 9, but 4 experts .* fill 8"),
        (torch.ones(4), (0, 2), "num_slots is 0"),
        (torch.ones(4), (4, 0), "num_ranks is 0"),
        (torch.ones(4), (4, 2, 0), "num_nodes is 0"),
        (torch.ones(4), (4.0, 2), "num_slots is 4.0"),
        (torch.ones(4), (4, True), "num_ranks is True"),
        (torch.ones(4), (4, 2, 2), "without groups"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named(load, sizes, message):
    with pytest.raises(DispatchError, match=message):
        balance(load, *sizes)


@pytest.mark.parametrize(
    ("sizes", "groups", "message"),
    [
        ((12, 4, 2), 5, "groups is 5, which does not divide the 12 experts"),
        ((12, 4, 2), 3, "num_nodes is 2, which does not divide the 3 groups"),
        ((12, 3, 2), 4, "num_nodes is 2, which does not divide the 3 ranks"),
        ((13, 4, 2), 4, "num_nodes is 2, which does not divide the 13 slots"),
        ((26, 4, 2), 4, "12 experts with one replica on each of 2 ranks of a node fill 24"),
        ((12, 4, 2), 0, "groups is 0"),
    ],
)
def test_groups_and_nodes_that_do_not_fit_are_named(sizes, groups, message):
    with pytest.raises(DispatchError, match=message):
        balance(torch.ones(12), *sizes, groups=groups)


def test_a_plan_that_is_as_good_is_kept():
    plans = balance(EPLB_LOAD, 16, 8)
    shuffled = tuple(Placement(12, tuple(experts[::-1] for experts in plan.experts[::-1])) for plan in plans)
    assert balance(EPLB_LOAD, 16, 8, current=shuffled) == shuffled


def test_a_plan_of_other_neighbours_that_is_as_good_is_kept():
    current = (Placement.contiguous(4, 2),)
    assert balance(torch.ones(4), 4, 2) != current
    assert balance(torch.ones(4), 4, 2, current=current) == current


def test_a_current_plan_that_parts_groups_is_left():
    flat, grouped = balance(EPLB_LOAD, 16, 8), balance(EPLB_LOAD, 16, 8, 2, groups=4)
    found = balance(EPLB_LOAD, 16, 8, 2, groups=4, current=flat)
    torch.testing.assert_close(planned_balancedness(EPLB_LOAD, found), planned_balancedness(EPLB_LOAD, grouped))
    assert [{e // 3 for rank in plan.experts[:4] for e in rank} for plan in found] != [{0, 1, 2, 3}] * 2


@pytest.mark.parametrize("seed", range(20))
def test_as_few_experts_move_as_any_renaming_of_ranks_allows(seed):
    old, new = zipf(1, 9, 1.0, seed), zipf(1, 9, 1.0, seed + 100)
    (current,), (plan,) = balance(old, 14, 5), balance(new, 14, 5)  # ranks of 3, 3, 3, 3 and 2 slots
    found = settled(plan, current, 1)
    renamings = itertools.permutations(plan.experts)
    fitting = [r for r in renamings if [len(experts) for experts in r] == [3, 3, 3, 3, 2]]
    assert len(arrivals(current, found)) == min(len(arrivals(current, Placement(9, r))) for r in fitting)
    assert as_sets(found) == as_sets(plan)


@pytest.mark.parametrize("seed", range(10))
def test_ranks_are_renamed_within_nodes_and_nodes_among_each_other(seed):
    old, new = zipf(1, 12, 0.7, seed), zipf(1, 12, 0.7, seed + 100)
    (current,), (plan,) = balance(old, 18, 6, 2, groups=4), balance(new, 18, 6, 2, groups=4)
    found = settled(plan, current, 2)
    halves = plan.experts[:3], plan.experts[3:]
    renamings = [
        (*first, *second)
        for one, other in (halves, halves[::-1])
        for first in itertools.permutations(one)
        for second in itertools.permutations(other)
    ]
    assert len(arrivals(current, found)) == min(len(arrivals(current, Placement(12, r))) for r in renamings)
    assert {frozenset(found.experts[0]), frozenset(found.experts[3])} <= set(map(frozenset, plan.experts))


def moved(load, current, **gain):
    """What `balance` makes of `current`: its balancedness, and how many experts change ranks."""
    (plan,) = balance(load, current.num_slots, current.num_ranks, current=(current,), **gain)
    return planned_balancedness(load, (plan,)).item(), len(arrivals(current, plan))


def test_a_gain_of_a_hundredth_moves_nothing():
    load = zipf(1, 128, 0.6) * 1e5
    (current,) = balance(load, 144, 8)
    noise = torch.randn(128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drifted = load * (1 + 0.01 * noise)
    before, best = (planned_balancedness(drifted, (plan,)).item() for plan in (current, *balance(drifted, 144, 8)))
    assert best - 0.01 < before < best
    assert moved(drifted, current) == (before, 0)
    assert moved(drifted, current, least_gain=0) >= (best, 1)


def test_a_few_exchanges_are_taken_before_a_new_plan():
    load = zipf(1, 128, 0.6) * 1e5
    (current,) = balance(load, 144, 8)
    load[0, torch.tensor(current.experts[3])] *= 1.1  # 0.925 as it is
    (fresh,) = balance(load, 144, 8)
    found, number = moved(load, current)
    assert found >= planned_balancedness(load, (fresh,)).item() - 0.01
    assert number == 6
    assert len(arrivals(current, settled(fresh, current, 1))) > 60


def test_interchangeable_experts_stay():
    load = torch.tensor([[5.0, 5, *[1] * 22]])  # 16, 8 and 8 in order: one of 5 and one of 1 change places
    current = Placement.contiguous(24, 3)
    (fresh,) = balance(load, 24, 3)
    assert moved(load, current) == (pytest.approx(32 / 3 / 12), 2)
    assert len(arrivals(current, settled(fresh, current, 1))) > 2


@pytest.mark.parametrize(("gain", "moves"), [(0.1, False), (0.09, True), (0, True), (1.0, False)])
def test_the_least_gain_is_of_balancedness(gain, moves):
    load = torch.tensor([5.0, 6, 5, 4])  # 11 and 9 in order, 10 and 10 at best: from 0.909 to 1
    found = moved(load, Placement.contiguous(4, 2), least_gain=gain)
    assert found == ((1.0, 2) if moves else (pytest.approx(10 / 11), 0))


@pytest.mark.parametrize("gain", [-0.01, float("nan"), "0.1", None])
@pytest.mark.usefixtures("unchecked")
def test_a_least_gain_that_is_none_is_named(gain):
    with pytest.raises(DispatchError, match="least_gain is"):
        balance(torch.ones(4), 4, 2, current=(Placement.contiguous(4, 2),), least_gain=gain)


@pytest.mark.parametrize("load", [[1e308] * 4, [1.7e308, 1e308, 1.7e308, 5e307]])
def test_loads_whose_sum_overflows_keep_a_plan_that_is_as_good(load):
    load = torch.tensor(load, dtype=torch.float64)
    (plan,) = balance(load, 4, 2)
    (found,) = balance(load, 4, 2, current=(plan,), least_gain=0)
    assert found == plan
    other = Placement(4, tuple(experts[::-1] for experts in plan.experts[::-1]))
    assert balance(load, 4, 2, current=(other,), least_gain=0) == (other,)


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_default_device_is_not_used(device):
    load, sizes = zipf(2, 12, 1.2), (16, 4)
    current = balance(load, *sizes)
    changed = load.flip(1)
    wanted = balance(changed, *sizes, current=current)
    torch.set_default_device(device)
    try:
        assert balance(load, *sizes) == current
        found = balance(changed, *sizes, current=current)
        nearly_full = balance(load[:1, :4], 11, 3)
    finally:
        torch.set_default_device(None)
    assert found == wanted != current
    assert nearly_full == balance(load[:1, :4], 11, 3)


def test_an_expert_that_stays_on_a_rank_stays_in_its_slot():
    current = Placement(6, ((5, 1, 3), (4, 0, 2)))
    plan = Placement(6, ((0, 2, 3), (1, 4, 5)))
    found = settled(plan, current, 1)
    assert found == Placement(6, ((5, 1, 4), (3, 0, 2)))
    assert arrivals(current, found) == (2, 3)


def test_arrivals_count_ranks_that_are_new():
    assert arrivals(Placement(2, ((0, 1),)), Placement(2, ((1, 0), (0,)))) == (2,)
    assert arrivals(Placement(2, ((1, 0), (0,))), Placement(2, ((0, 1),))) == ()


@pytest.mark.parametrize(
    ("current", "message"),
    [
        ((Placement.contiguous(12, 4),), "1 current placements for the load of 2 layers"),
        ((Placement.contiguous(12, 4), Placement.contiguous(11, 4)), "layer 1 has 11 experts"),
        (
            (Placement.contiguous(12, 4), Placement.contiguous(12, 3)),
            r"layer 1 has 12 experts and ranks of \(4, 4, 4\)",
        ),
    ],
)
def test_a_current_plan_of_another_size_is_named(current, message):
    with pytest.raises(DispatchError, match=message):
        balance(EPLB_LOAD, 12, 4, current=current)


@pytest.mark.parametrize("exponent", [0.0, 0.4, 0.8, 1.2, 2.0])
@pytest.mark.parametrize("slots", [256, 288])
def test_no_worse_than_the_plain_greedy_plan(exponent, slots):
    load = zipf(3, 256, exponent) * (1 + torch.rand(3, 256, generator=torch.Generator().manual_seed(1)))
    found = planned_balancedness(load, balance(load, slots, 8))
    assert all(own >= greedy(row.tolist(), slots, 8) - 0.002 for own, row in zip(found.tolist(), load, strict=True))


def test_the_time_for_a_large_model():
    load = zipf(58, 256, 0.8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(3):
            start = time.process_time()
            balance(load, 288, 8)
            seconds.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    assert min(seconds) < 1.0  # 0.05 s on an idle core: this notices a plan of one layer after another


def test_placement_alone_levels_what_tokens_do():
    popularity = zipf(1, 256, 0.8)[0]
    generator = torch.Generator().manual_seed(3)

    def batch():
        noise = torch.empty(1024, 256, dtype=torch.float64).exponential_(generator=generator)
        return (popularity / noise).topk(8, dim=1).indices.int()  # Gumbel's trick: eight without replacement

    history = torch.stack([torch.bincount(batch().flatten(), minlength=256) for _ in range(8)]).sum(0)
    (plan,) = balance(history, 256, 8)
    tables, found = plan.tables(), []
    for _ in range(12):
        reached = torch.bincount(tables.local(batch())[0].flatten(), minlength=8)
        found.append(float(reached.double().mean() / reached.max()))
    assert sum(found) / len(found) >= 0.94
    assert realised_balancedness(history, (plan,), num_tokens=1024, top_k=8) >= 0.94
