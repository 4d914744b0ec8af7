"""balance: a placement for each layer under which the ranks carry as nearly the same load as the slots allow.

The scheme of DeepSeek's EPLB (https://github.com/deepseek-ai/EPLB): slots go to the experts whose replicas carry most,
then replicas to ranks, heaviest first. Different here: at most one replica of an expert on a rank, an even plan
without load, exchanges after packing, all layers at a time, and few moves from the current plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from moesaic.dispatch.balancedness import planned_balancedness
from moesaic.dispatch.load import checked_load
from moesaic.dispatch.packing import pack
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.plan_sizes import PlanSizes
from moesaic.dispatch.replicas import replica_counts, shares
from moesaic.dispatch.stability import settled


def balance(
    load: Tensor,
    num_slots: int,
    num_ranks: int,
    num_nodes: int = 1,
    *,
    groups: int | None = None,
    current: Sequence[Placement] | None = None,
) -> tuple[Placement, ...]:
    """A placement for each layer of `load [layers, E]` (or `[E]`): what each expert got, in tokens or any other unit.

    `num_slots` S of E or more, shared out over the ranks as evenly as possible; S = E places without replicas.
    Without `groups` ranks are all alike. With it, E experts in that many runs of equal length are kept together on a
    node, each node getting the same number of runs and of slots (DeepSeek-V3 routes a token to few of 8 groups, so to
    few nodes); replicas stay on the node. Pure, and the same in every run and on every machine.

    With `current`, one placement a layer of the same sizes, a layer keeps its plan unless the new one is better, and
    else takes the new one with as few experts that change ranks as that plan allows.

    Raises DispatchError for a load that is negative, NaN or infinite, too few slots or too many, groups that the nodes
    do not divide, and a current plan of another size.
    """
    layers = checked_load(load)
    sizes = PlanSizes.checked(layers.shape[1], num_slots, num_ranks, num_nodes, groups)
    plans = _planned(layers, sizes)
    if current is None:
        return plans
    sizes.check_current(current, len(layers))
    old, new = planned_balancedness(layers, current), planned_balancedness(layers, plans)
    keeps = [
        was >= now and sizes.allows(own) for was, now, own in zip(old.tolist(), new.tolist(), current, strict=True)
    ]
    return tuple(
        own if keep else settled(plan, own, sizes.num_nodes)
        for keep, own, plan in zip(keeps, current, plans, strict=True)
    )


def _planned(load: Tensor, sizes: PlanSizes) -> tuple[Placement, ...]:
    """The new plan of each layer."""
    share, layers, nodes = shares(load), len(load), sizes.num_nodes
    experts = _experts_of_nodes(share, sizes)
    own = share.gather(1, experts.flatten(1)).reshape(layers * nodes, -1)
    counts = replica_counts(own, sizes.num_slots // nodes, sizes.num_ranks // nodes)
    local = torch.arange(own.shape[1]).expand_as(own).reshape(-1)
    replica = local.repeat_interleave(counts.flatten()).reshape(layers * nodes, -1)
    rank = pack((own / counts).gather(1, replica), replica, sizes.capacities)
    expert = experts.reshape(layers * nodes, -1).gather(1, replica)
    in_order = (rank * sizes.num_experts + expert).argsort(dim=1)
    slots: list[list[int]] = expert.gather(1, in_order).reshape(layers, -1).tolist()
    return tuple(Placement(sizes.num_experts, _cut(row, sizes.capacities * nodes)) for row in slots)


def _experts_of_nodes(share: Tensor, sizes: PlanSizes) -> Int[Tensor, "layers nodes own"]:
    """The experts that each node holds: groups packed like replicas, as many on each node."""
    layers, nodes = len(share), sizes.num_nodes
    group = torch.arange(sizes.groups).expand(layers, -1)
    node = pack(share.unflatten(1, (sizes.groups, -1)).sum(2), group, (sizes.groups // nodes,) * nodes)
    runs = torch.arange(sizes.num_experts).reshape(sizes.groups, -1)
    return runs[node.argsort(dim=1, stable=True)].reshape(layers, nodes, -1)


def _cut(slots: list[int], sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """`slots` in runs of `sizes`."""
    remaining = iter(slots)
    return tuple(tuple(next(remaining) for _ in range(size)) for size in sizes)
