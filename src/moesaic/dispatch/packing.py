"""Packing: replicas onto ranks, as many on each as it has slots, never two of one expert, as level as possible.

Heaviest first onto the lightest rank, as in LPT scheduling; then replicas of the heaviest rank are exchanged as long
as that makes it lighter. All rows (layers, or nodes of layers) at a time, in main memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEVEL = 1.001
"""A heaviest rank with at most this times the mean is level enough to leave alone."""

MOST_EXCHANGES = 64
"""Exchanges after packing, in each row; rows that need more are within a per mille of each other by then."""


@final
@dataclass(frozen=True, eq=False)
class Packing:
    """`bins`: the rank of each replica; what ranks carry, what room they have, and which expert is on which rank.

    All are changed in place.
    """

    bins: Int[Tensor, "P S"]
    carried: Float[Tensor, "P N"]
    room: Int[Tensor, "P N"]
    has: Bool[Tensor, "P E N"]


def pack(weight: Float[Tensor, "P S"], expert: Int[Tensor, "P S"], capacities: tuple[int, ...]) -> Int[Tensor, "P S"]:
    """The rank of each replica, which has `weight` and belongs to `expert`.

    `capacities`: slots of each rank, which differ by at most one and add up to S; no expert has more replicas than
    there are ranks. Then a packing without two replicas of an expert on a rank exists, and is found.
    """
    order = weight.argsort(dim=1, descending=True, stable=True)
    weight, expert = weight.gather(1, order), expert.gather(1, order)
    num_rows, num_ranks = len(weight), len(capacities)
    packing = Packing(
        torch.full_like(expert, -1),
        weight.new_zeros(num_rows, num_ranks),
        torch.tensor(capacities, device="cpu").expand(num_rows, -1).clone(),
        torch.zeros(num_rows, int(expert.max()) + 1, num_ranks, dtype=torch.bool, device="cpu"),
    )
    rows = torch.arange(num_rows, device="cpu")
    for turn in range(weight.shape[1]):
        closed = packing.has[rows, expert[:, turn]] | (packing.room == 0)
        for row in closed.all(1).nonzero().flatten().tolist():
            closed[row, _make_room(packing, weight[row], expert[row], row, turn)] = False
        rank = packing.carried.masked_fill(closed, math.inf).argmin(1)
        packing.bins[:, turn] = rank
        packing.carried[rows, rank] += weight[:, turn]
        packing.room[rows, rank] -= 1
        packing.has[rows, expert[:, turn], rank] = True
    _exchange(packing, weight, expert, LEVEL * packing.carried.mean(1))
    return torch.empty_like(expert).scatter_(1, order, packing.bins)


def exchanged(
    bins: Int[Tensor, "P S"], weight: Float[Tensor, "P S"], expert: Int[Tensor, "P S"], highest: Float[Tensor, " P"]
) -> Int[Tensor, "P S"]:
    """A packing `bins` with as few exchanges as it takes until no rank of a row carries more than `highest`.

    Or with those that help, where they do not suffice. `weight` and `expert` as for `pack`.
    """
    num_rows, num_ranks = len(bins), int(bins.max()) + 1
    packing = Packing(
        bins.clone(),
        weight.new_zeros(num_rows, num_ranks).scatter_add_(1, bins, weight),
        bins.new_zeros(num_rows, num_ranks),
        torch.zeros(num_rows, int(expert.max()) + 1, num_ranks, dtype=torch.bool, device="cpu"),
    )
    packing.has[torch.arange(num_rows, device="cpu").unsqueeze(1), expert, bins] = True
    _exchange(packing, weight, expert, highest)
    return packing.bins


def _make_room(packing: Packing, weight: Tensor, expert: Tensor, row: int, turn: int) -> int:
    """Move one replica so that the one of `turn` fits; the rank that has room now.

    All ranks with room hold this expert, so one that does not hold it is full, and with sizes that differ by at most
    one it holds an expert that the rank with room does not.
    """
    bins, carried, has = packing.bins[row], packing.carried[row], packing.has[row]
    wide = int(packing.room[row].argmax())
    placed = bins[:turn]
    movable = ~has[expert[turn]][placed] & ~has[expert[:turn], wide]
    after = torch.maximum(carried[wide] + weight[:turn], carried[placed] - weight[:turn] + weight[turn])
    moved = int(after.masked_fill(~movable, math.inf).argmin())
    left = int(placed[moved])
    bins[moved] = wide
    for rank, sign in ((wide, 1), (left, -1)):
        carried[rank] += sign * weight[moved]
        packing.room[row, rank] -= sign
        has[expert[moved], rank] = sign > 0
    return left


def _exchange(packing: Packing, weight: Tensor, expert: Tensor, highest: Tensor) -> None:
    """Exchange replicas of the heaviest rank of each row for lighter ones, while it carries more than `highest`."""
    rows = torch.arange(len(weight), device="cpu")
    for _ in range(MOST_EXCHANGES):
        rows = rows[packing.carried[rows].amax(1) > highest[rows]]
        if not len(rows):
            return
        rows = rows[_exchange_once(packing, weight[rows], expert[rows], rows)]


def _exchange_once(packing: Packing, weight: Tensor, expert: Tensor, rows: Tensor) -> Tensor:
    """Make the best exchange of each of `rows`; whether there was one."""
    bins, carried, has = packing.bins[rows], packing.carried[rows], packing.has[rows]
    top = carried.argmax(1, keepdim=True)
    highest = carried.gather(1, top)
    num_rows, most = len(rows), int((bins == top).sum(1).max())
    # The replicas of the heaviest rank, `own`, in one axis; every replica in the other.
    inside = (bins == top).int().argsort(dim=1, descending=True, stable=True)[:, :most]
    here = bins.gather(1, inside) == top
    own_expert = expert.gather(1, inside)
    lighter = weight.gather(1, inside).unsqueeze(2) - weight.unsqueeze(1)
    there = carried.gather(1, bins).unsqueeze(1)
    after = torch.maximum(highest.unsqueeze(2) - lighter, there + lighter)
    each = torch.arange(num_rows, device="cpu").unsqueeze(1)
    on_top = has[each, expert, top]  # of every replica: whether its expert is on the heaviest rank already
    twin = has[each.unsqueeze(2), own_expert.unsqueeze(2), bins.unsqueeze(1)]  # of each pair: whether `own` is there
    after = after.masked_fill(~here.unsqueeze(2) | on_top.unsqueeze(1) | twin, math.inf).flatten(1)
    best, pair = after.min(1)
    better = best < highest.flatten() * (1 - 1e-9)
    own = inside[each.flatten(), pair // weight.shape[1]][better]
    _swap(packing, rows[better], (own, pair[better] % weight.shape[1]), (weight[better], expert[better]))
    return better


def _swap(packing: Packing, rows: Tensor, pair: tuple[Tensor, Tensor], replicas: tuple[Tensor, Tensor]) -> None:
    """Let two replicas of each of `rows` change places."""
    (own, other), (weight, expert), each = pair, replicas, torch.arange(len(rows), device="cpu")
    here, there = packing.bins[rows, own], packing.bins[rows, other]
    for replica, left, entered in ((own, here, there), (other, there, here)):
        packing.bins[rows, replica] = entered
        packing.carried[rows, left] -= weight[each, replica]
        packing.carried[rows, entered] += weight[each, replica]
        packing.has[rows, expert[each, replica], left] = False
        packing.has[rows, expert[each, replica], entered] = True
