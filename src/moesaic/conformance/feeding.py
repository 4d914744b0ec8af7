"""feed: contents laid out as a batch, with a chosen poison in all memory that nobody defined."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.conformance.case import Case
from moesaic.conformance.contents import Contents
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard

Place = Callable[[Tensor], Tensor]
"""Puts a tensor where the backend will see it: on a device, inside guard bytes, as a view of something wider."""


@final
@dataclass(frozen=True)
class Poison:
    """What undefined memory holds: `value` in rows and behind inactive slots, and the ids that mark such slots.

    The ids are -1, L, L + 5, the ends of int32 and others in turn, beginning at `rotation`; None means -1 everywhere.
    """

    value: float
    rotation: int | None = None

    def ids(self, count: int, num_experts: int) -> Tensor:
        """`count` int32 ids outside `[0, num_experts)`."""
        if self.rotation is None:
            return torch.full((count,), -1, dtype=torch.int32)
        garbage = torch.tensor(garbage_ids(num_experts), dtype=torch.int32)
        return garbage[(torch.arange(count) + self.rotation) % len(garbage)]


CALM = Poison(0.0)
"""Zeros, and -1 behind inactive slots: what a careful producer would leave."""

NAN = Poison(math.nan, rotation=0)
"""NaN and garbage ids: what `torch.empty` may leave."""


def garbage_ids(num_experts: int) -> tuple[int, ...]:
    """Ids that producers use for "nobody" (vLLM -1, DeepEP L, FlashInfer any large one) and the ends of int32."""
    return (-1, num_experts, num_experts + 5, 2**31 - 1, -(2**31), -num_experts, num_experts + 65536)


@final
@dataclass(frozen=True, eq=False)
class Fed:
    """A batch, and `live`, the bool mask over its rows (`[T]`, `[R]` or `[L, C]`) of those whose output is defined."""

    batch: Batch
    live: Tensor


def feed(case: Case, contents: Contents, poison: Poison, place: Place) -> Fed:
    """`contents` in the layout `case.fed`. Live rows do not depend on `poison`; every tensor goes through `place`."""
    match case.fed:
        case GroupedContiguous(alignment):
            return _grouped(case, contents, poison, place, alignment)
        case BatchedExperts():
            return _batched(case, contents, poison, place)
        case _:
            return _tokens(case, contents, poison, place)


def _tokens(case: Case, contents: Contents, poison: Poison, place: Place) -> Fed:
    active, rows = contents.active, contents.hidden_states.clone()
    ids, weights = contents.ids.clone(), contents.weights.clone()
    ids[~active] = poison.ids(int((~active).sum()), case.problem.num_experts)
    weights[~active] = poison.value
    live = torch.ones_like(active[:, 0]) if active.shape[0] else active.any(1)
    if isinstance(case.fed, PaddedStandard):
        live = active.any(1)
        rows[~live] = poison.value
        # The count of valid rows is optional: cases of an even seed carry it.
        defined = int(live.nonzero().max()) + 1 if bool(live.any()) else 0
        valid = place(torch.tensor(defined, dtype=torch.int32)) if case.seed % 2 == 0 else None
        return Fed(PaddedStandardBatch(place(rows), Routing(place(ids), place(weights)), valid), live)
    return Fed(StandardBatch(place(rows), Routing(place(ids), place(weights))), live)


def _grouped(case: Case, contents: Contents, poison: Poison, place: Place, alignment: int) -> Fed:
    source, counts = _by_expert(case, contents)
    gap = alignment if case.padding > 0 else 0
    taken = -(-counts // alignment) * alignment + gap
    offsets = gap + taken.cumsum(0) - taken
    total = int(offsets[-1] + taken[-1]) + (5 if gap else 0)
    owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
    within = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    live = torch.zeros(total, dtype=torch.bool)
    live[offsets[owner] + within] = True
    rows = torch.full((total, case.problem.hidden_size), poison.value, dtype=case.problem.dtype)
    rows[live] = source
    batch = GroupedBatch(place(rows), place(offsets.int()), place(counts.int()), alignment)
    return Fed(batch, live)


def _batched(case: Case, contents: Contents, poison: Poison, place: Place) -> Fed:
    source, counts = _by_expert(case, contents)
    capacity = int(counts.max())
    if case.padding > 0:
        capacity += 3 + capacity // 4
    live = torch.arange(capacity) < counts.unsqueeze(1)
    rows = torch.full((len(counts), capacity, case.problem.hidden_size), poison.value, dtype=case.problem.dtype)
    rows[live] = source
    return Fed(BatchedBatch(place(rows), place(counts.int())), live)


def _by_expert(case: Case, contents: Contents) -> tuple[Tensor, Tensor]:
    """The rows of the active slots in the order of their experts `[R, H]`, and the rows of each expert `[L]`."""
    active = contents.active if case.padding < 1 else torch.zeros_like(contents.active)
    token, _ = torch.where(active)
    chosen, order = torch.sort(contents.ids[active], stable=True)
    return contents.hidden_states[token[order]], torch.bincount(chosen, minlength=case.problem.num_experts)


def expert_of_row(case: Case, contents: Contents) -> Tensor:
    """The expert of each live row of a batch without routing, in the order of the live rows."""
    active = contents.active if case.padding < 1 else torch.zeros_like(contents.active)
    return torch.sort(contents.ids[active], stable=True).values
