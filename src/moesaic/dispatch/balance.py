"""balance: a placement for each layer under which the ranks carry as nearly the same load as the slots allow.

The scheme of DeepSeek's EPLB (https://github.com/deepseek-ai/EPLB): slots go to the experts whose replicas carry most,
then replicas to ranks, heaviest first. Different here: at most one replica of an expert on a rank, an even plan
without load, exchanges after packing, all layers at a time, and few moves from the current plan, or none for a small
gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from moesaic.checks import finite_number
from moesaic.dispatch.balancedness import planned_balancedness, relative
from moesaic.dispatch.load import checked_load
from moesaic.dispatch.packing import exchanged, pack
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.plan_sizes import PlanSizes
from moesaic.dispatch.replicas import replica_counts, shares
from moesaic.dispatch.stability import arrivals, settled
from moesaic.errors import DispatchError


def balance(
    load: Tensor,
    num_slots: int,
    num_ranks: int,
    num_nodes: int = 1,
    *,
    groups: int | None = None,
    current: Sequence[Placement] | None = None,
    least_gain: float = 0.01,
) -> tuple[Placement, ...]:
    """A placement for each layer of `load [layers, E]` (or `[E]`): what each expert got, in tokens or any other unit.

    `num_slots` S of E or more, shared out over the ranks as evenly as possible; S = E places without replicas.
    Without `groups` ranks are all alike. With it, E experts in that many runs of equal length are kept together on a
    node, each node getting the same number of runs and of slots (DeepSeek-V3 routes a token to few of 8 groups, so to
    few nodes); replicas stay on the node. Pure, and the same in every run and on every machine.

    With `current`, one placement a layer of the same sizes, a layer keeps its plan unless a new one is better by more
    than `least_gain` of balancedness (planned; between 0 and 1). Else it takes, of two plans within `least_gain` of the
    new one, the one with fewer experts that change ranks: the new one, its ranks renamed; or the current one after
    exchanges of replicas between its ranks, if some lead there. With `least_gain=0` any gain counts.

    Raises DispatchError for a load that is negative, NaN or infinite, too few slots or too many, groups that the nodes
    do not divide, a current plan of another size, and a `least_gain` that is negative.
    """
    layers = checked_load(load)
    sizes = PlanSizes.checked(layers.shape[1], num_slots, num_ranks, num_nodes, groups)
    gain = finite_number("balance", "least_gain", least_gain, DispatchError)
    if gain < 0:
        raise DispatchError(f"balance.least_gain is {gain}, but it needs at least 0, for any gain at all")
    plans = _planned(layers, sizes)
    if current is None:
        return plans
    sizes.check_current(current, len(layers))
    return _moved(layers, current, plans, gain, sizes)


def _moved(
    load: Tensor, current: Sequence[Placement], new: Sequence[Placement], gain: float, sizes: PlanSizes
) -> tuple[Placement, ...]:
    """The current plan of each layer, or what of `new` and of exchanges moves fewer experts."""
    needed, plans = planned_balancedness(load, new) - gain, list(current)
    allowed = torch.tensor([sizes.allows(plan) for plan in current], device="cpu")
    moving: list[int] = (~allowed | (planned_balancedness(load, current) < needed)).nonzero().flatten().tolist()
    if not moving:
        return tuple(plans)
    nearby = _exchanged(load[moving], [current[layer] for layer in moving], needed[moving], sizes)
    reached = allowed[moving] & (planned_balancedness(load[moving], nearby) >= needed[moving])
    for layer, near, suffices in zip(moving, nearby, reached.tolist(), strict=True):
        own = current[layer]
        choices = [settled(plan, own, sizes.num_nodes) for plan in (new[layer], *([near] if suffices else []))]
        plans[layer] = min(choices, key=lambda plan, own=own: len(arrivals(own, plan)))
    return tuple(plans)


def _exchanged(
    load: Tensor, plans: Sequence[Placement], needed: Float[Tensor, " layers"], sizes: PlanSizes
) -> tuple[Placement, ...]:
    """`plans` after exchanges between the ranks of a node, as few as make them as balanced as `needed`, if any do."""
    carried, nodes = relative(load), sizes.num_nodes
    slots = torch.tensor([[slot for own in plan.experts for slot in own] for plan in plans], device="cpu")
    replicas = torch.tensor([plan.replicas for plan in plans], device="cpu")
    expert = slots.reshape(len(plans) * nodes, -1)
    weight = (carried / replicas).gather(1, slots).reshape(expert.shape)
    per_rank = torch.tensor(sizes.capacities, device="cpu")
    rank = torch.arange(len(per_rank), device="cpu").repeat_interleave(per_rank).expand_as(expert)
    highest = (carried.sum(1) / sizes.num_ranks / needed).repeat_interleave(nodes)
    return _placements(expert, exchanged(rank, weight, expert, highest), sizes)


def _planned(load: Tensor, sizes: PlanSizes) -> tuple[Placement, ...]:
    """The new plan of each layer."""
    share, layers, nodes = shares(load), len(load), sizes.num_nodes
    experts = _experts_of_nodes(share, sizes)
    own = share.gather(1, experts.flatten(1)).reshape(layers * nodes, -1)
    counts = replica_counts(own, sizes.num_slots // nodes, sizes.num_ranks // nodes)
    local = torch.arange(own.shape[1], device="cpu").expand_as(own).reshape(-1)
    replica = local.repeat_interleave(counts.flatten()).reshape(layers * nodes, -1)
    rank = pack((own / counts).gather(1, replica), replica, sizes.capacities)
    return _placements(experts.reshape(layers * nodes, -1).gather(1, replica), rank, sizes)


def _experts_of_nodes(share: Tensor, sizes: PlanSizes) -> Int[Tensor, "layers nodes own"]:
    """The experts that each node holds: groups packed like replicas, as many on each node."""
    layers, nodes = len(share), sizes.num_nodes
    group = torch.arange(sizes.groups, device="cpu").expand(layers, -1)
    node = pack(share.unflatten(1, (sizes.groups, -1)).sum(2), group, (sizes.groups // nodes,) * nodes)
    runs = torch.arange(sizes.num_experts, device="cpu").reshape(sizes.groups, -1)
    return runs[node.argsort(dim=1, stable=True)].reshape(layers, nodes, -1)


def _placements(
    expert: Int[Tensor, "layers_nodes own"], rank: Int[Tensor, "layers_nodes own"], sizes: PlanSizes
) -> tuple[Placement, ...]:
    """Of each layer, from the expert of each replica on each node and its rank there."""
    in_order = (rank * sizes.num_experts + expert).argsort(dim=1)
    slots: list[list[int]] = expert.gather(1, in_order).reshape(-1, sizes.num_slots).tolist()
    return tuple(Placement(sizes.num_experts, _cut(row, sizes.capacities * sizes.num_nodes)) for row in slots)


def _cut(slots: list[int], sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """`slots` in runs of `sizes`."""
    remaining = iter(slots)
    return tuple(tuple(next(remaining) for _ in range(size)) for size in sizes)
