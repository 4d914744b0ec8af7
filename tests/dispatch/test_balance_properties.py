"""balance on drawn loads and sizes: what every plan keeps to, and how far the best plan of tiny cases is."""

import functools
import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moesaic.dispatch.assignment import assignment
from moesaic.dispatch.balance import balance
from moesaic.dispatch.balancedness import planned_balancedness
from moesaic.dispatch.placement import even_share
from moesaic.dispatch.replicas import replica_counts, shares
from moesaic.dispatch.stability import arrivals

LOADS = st.one_of(st.integers(0, 20).map(float), st.sampled_from([0.0, 1.0, 1e-300, 1e300]))


@st.composite
def cases(draw, most_experts=12, most_ranks=6):
    """A load of one or two layers as lists, slots, ranks, nodes and groups that fit together."""
    nodes = draw(st.sampled_from([1, 1, 2, 3]))
    ranks = nodes * draw(st.integers(1, max(1, most_ranks // nodes)))
    groups = nodes * draw(st.integers(1, 2))
    experts = groups * draw(st.integers(1, max(1, most_experts // groups)))
    least = max(experts, ranks) // nodes + (max(experts, ranks) % nodes > 0)
    most = experts * ranks // nodes // nodes
    assume(least <= most)
    slots = nodes * draw(st.integers(least, most))
    load = draw(st.lists(st.lists(LOADS, min_size=experts, max_size=experts), min_size=1, max_size=2))
    return load, slots, ranks, nodes, groups if nodes > 1 else None


def assert_sizes(plans, case):
    """That every expert has a slot, and none two on a rank, is what a Placement is."""
    load, slots, ranks, nodes, groups = case
    for plan in plans:
        assert (plan.num_experts, plan.num_slots, plan.num_ranks) == (len(load[0]), slots, ranks)
        lengths = [len(experts) for experts in plan.experts]
        per_node = ranks // nodes
        shared = [len(even_share(slots // nodes, per_node, rank)) for rank in range(per_node)]
        assert lengths == shared * nodes
        if groups is not None:
            size = len(load[0]) // groups
            homes = {(e // size, rank // per_node) for rank, experts in enumerate(plan.experts) for e in experts}
            assert len(homes) == groups


@given(case=cases(), again=st.randoms())
@settings(deadline=None, max_examples=300)
def test_every_plan_keeps_to_its_sizes(case, again):
    load, slots, ranks, nodes, groups = case
    plans = balance(torch.tensor(load, dtype=torch.float64), slots, ranks, nodes, groups=groups)
    assert_sizes(plans, case)
    again.shuffle(load)
    current = balance(torch.tensor(load, dtype=torch.float64), slots, ranks, nodes, groups=groups)
    assert sorted(map(repr, current)) == sorted(map(repr, plans)), "a layer's plan does not depend on the others"


@given(case=cases(), before=st.integers(0, 10**6), gain=st.sampled_from([0.0, 0.01, 0.2]))
@settings(deadline=None, max_examples=200)
def test_the_current_plan_costs_the_least_gain_at_most(case, before, gain):
    load, slots, ranks, nodes, groups = case
    load = torch.tensor(load, dtype=torch.float64)
    old = torch.rand(load.shape, generator=torch.Generator().manual_seed(before), dtype=torch.float64)
    current = balance(old, slots, ranks, nodes, groups=groups)
    fresh = balance(load, slots, ranks, nodes, groups=groups)
    found = balance(load, slots, ranks, nodes, groups=groups, current=current, least_gain=gain)
    assert_sizes(found, case)
    assert (planned_balancedness(load, found) >= planned_balancedness(load, fresh) - gain - 1e-12).all()
    for one, free, own in zip(found, fresh, current, strict=True):
        assert len(arrivals(own, one)) <= len(arrivals(own, free))
    assert balance(load, slots, ranks, nodes, groups=groups, current=found, least_gain=gain) == found


@given(load=st.lists(LOADS, min_size=1, max_size=5), spare=st.integers(0, 6), most=st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_replica_counts_make_the_largest_replica_smallest(load, spare, most):
    slots = min(len(load) + spare, len(load) * most)
    share = shares(torch.tensor([load], dtype=torch.float64))
    counts = replica_counts(share, slots, most)[0].tolist()
    assert sum(counts) == slots
    assert all(1 <= count <= most for count in counts)
    row = share[0].tolist()
    every = (c for c in itertools.product(range(1, most + 1), repeat=len(load)) if sum(c) == slots)
    best = min(max(s / n for s, n in zip(row, c, strict=True)) for c in every)
    assert max(s / n for s, n in zip(row, counts, strict=True)) == pytest.approx(best, rel=1e-12)


def best_maximum(load, slots, ranks):
    """The smallest load of the heaviest rank over all placements, by trying them."""
    sizes = [len(even_share(slots, ranks, rank)) for rank in range(ranks)]
    choices = [list(itertools.combinations(range(len(load)), size)) for size in sizes]
    best = float("inf")
    for ways in itertools.product(*choices):
        counts = [sum(expert in way for way in ways) for expert in range(len(load))]
        if min(counts):
            best = min(best, max(sum(load[e] / counts[e] for e in way) for way in ways))
    return best


NEAR = {"placement alone": 4 / 3, "with replicas": 1.6}
"""The heaviest rank over that of the best plan. 4/3 bounds LPT scheduling (Graham 1969). Replicas go where the largest
replica becomes smallest, whatever the ranks then can do with them, so a handful of slots may be spent badly: 1.56 is
the worst that a search of such cases finds."""


@given(
    load=st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any),
    ranks=st.integers(2, 3),
    spare=st.integers(0, 3),
)
@settings(deadline=None, max_examples=300)
def test_tiny_plans_are_near_the_best_there_is(load, ranks, spare):
    slots = min(max(len(load), ranks) + spare, len(load) * ranks)
    (plan,) = balance(torch.tensor(load), slots, ranks)
    heaviest = max(sum(load[e] / plan.replicas[e] for e in experts) for experts in plan.experts)
    near = NEAR["with replicas" if slots > len(load) else "placement alone"]
    assert heaviest <= near * best_maximum(load, slots, ranks) + 1e-9


@given(
    scores=st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(-3, 9), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
@settings(deadline=None)
def test_an_assignment_has_the_largest_sum(scores):
    size = len(scores)

    def total(columns):
        return sum(row[column] for row, column in zip(scores, columns, strict=True))

    found = assignment(scores)
    assert sorted(found) == list(range(size))
    assert total(found) == max(map(total, itertools.permutations(range(size))))


@functools.cache
def hard_cases():
    """Loads whose last replicas meet ranks that hold their expert already: one has to be moved."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(64, experts, generator=generator) ** power, slots, ranks)
        for experts, slots, ranks in ((4, 11, 3), (5, 19, 4), (6, 29, 5), (8, 60, 8))
        for power in (0.1, 1, 8)
    ]


@pytest.mark.parametrize("number", range(12))
def test_nearly_full_fleets_are_filled(number):
    load, slots, ranks = hard_cases()[number]
    assert all(plan.num_slots == slots for plan in balance(load, slots, ranks))
