"""Stability: a new plan that leaves experts where they are as far as its balance allows."""

from __future__ import annotations

from collections.abc import Sequence

from moesaic.dispatch.assignment import assignment
from moesaic.dispatch.placement import Placement


def arrivals(before: Placement, after: Placement) -> tuple[int, ...]:
    """The physical slots of `after` whose expert was not on that slot's rank in `before`, ascending.

    So the experts whose weights have to travel: what a change of plan costs.
    """
    held = [set(experts) for experts in before.experts]
    held += [set[int]()] * (after.num_ranks - before.num_ranks)
    places = (expert in own for experts, own in zip(after.experts, held, strict=False) for expert in experts)
    return tuple(slot for slot, stays in enumerate(places) if not stays)


def settled(plan: Placement, current: Placement, num_nodes: int) -> Placement:
    """`plan` with its ranks and nodes renamed, and each rank's slots ordered, for the fewest arrivals from `current`.

    Which experts share a rank, and which ranks a node, stays as planned, and so does the balance. Ranks change names
    with ranks that have as many slots. An expert that stays on a rank stays in its slot.
    """
    renamed = _renamed(plan.experts, current.experts, num_nodes)
    pairs = zip(renamed, current.experts, strict=True)
    return Placement(plan.num_experts, tuple(_in_place(experts, old) for experts, old in pairs))


Ranks = Sequence[tuple[int, ...]]


def _renamed(plan: Ranks, current: Ranks, num_nodes: int) -> list[tuple[int, ...]]:
    """`plan[i]`, in the order of the ranks whose experts it shares most."""
    per_node = len(plan) // num_nodes
    starts = range(0, len(plan), per_node)
    scores = [[float(_shared(new, old)) for new in plan] for old in current]
    within: list[list[list[int]]] = []  # [old node][new node]: the new rank for each old one
    for old in starts:
        blocks = ([row[new : new + per_node] for row in scores[old : old + per_node]] for new in starts)
        within.append([assignment(block) for block in blocks])
    kept = [
        [sum(scores[old + i][new + j] for i, j in enumerate(pairs)) for new, pairs in zip(starts, row, strict=True)]
        for old, row in zip(starts, within, strict=True)
    ]
    nodes = assignment(kept)
    return [plan[node * per_node + j] for old, node in enumerate(nodes) for j in within[old][node]]


def _shared(new: tuple[int, ...], old: tuple[int, ...]) -> int:
    """How many experts two ranks share; a number that no sum makes up for if one has more slots."""
    return len(set(new) & set(old)) if len(new) == len(old) else -(2**40)


def _in_place(experts: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    """`experts` with those that `old` has too in the slots that they have there."""
    arriving = iter(sorted(set(experts) - set(old)))
    return tuple(expert if expert in experts else next(arriving) for expert in old)
