"""tiled: a small batch many times over, built where it lies, so that gigabytes are never moved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, Routing, TokenBatch
from moesaic.conformance.feeding import Fed


@final
@dataclass(frozen=True, eq=False)
class Tiled:
    """`first [R]`: where the live rows of the first repetition are among all rows; `step [R]`: how far to the next."""

    batch: Batch
    first: Tensor
    step: Tensor

    def places(self, repetition: int) -> Tensor:
        """Where the live rows of one repetition are, in the order of the small batch's."""
        return self.first + repetition * self.step


def tiled(fed: Fed, times: int) -> Tiled:
    """The batch with all its tokens, or all rows of each expert, `times` over. Gaps hold copies of a live row."""
    match fed.batch:
        case GroupedBatch() as batch:
            return _grouped(batch, times)
        case BatchedBatch() as batch:
            return _batched(batch, times)
        case batch:
            return _tokens(batch, fed.live, times)


def _tokens(batch: TokenBatch, live: Tensor, times: int) -> Tiled:
    routing = Routing(batch.routing.topk_ids.repeat(times, 1), batch.routing.topk_weights.repeat(times, 1))
    many = replace(batch, hidden_states=batch.hidden_states.repeat(times, 1), routing=routing)
    if isinstance(many, PaddedStandardBatch):
        many = replace(many, num_valid=None)
    first = torch.where(live)[0].to(batch.rows.device)
    return Tiled(many, first, torch.full_like(first, len(live)))


def _grouped(batch: GroupedBatch, times: int) -> Tiled:
    owner, within, step = _live_rows(batch.counts)
    taken = -(-batch.counts.long() * times // batch.alignment) * batch.alignment
    offsets = taken.cumsum(0) - taken
    first, source = offsets[owner] + within, batch.offsets[owner] + within
    rows = _gathered(batch.rows, source, first, step, times, int(taken.sum()))
    many = GroupedBatch(rows, offsets.int(), batch.counts * times, batch.alignment)
    return Tiled(many, first, step)


def _batched(batch: BatchedBatch, times: int) -> Tiled:
    owner, within, step = _live_rows(batch.counts)
    experts, capacity, hidden = batch.rows.shape
    first, source = owner * capacity * times + within, owner * capacity + within
    rows = _gathered(batch.rows.flatten(0, 1), source, first, step, times, experts * capacity * times)
    return Tiled(BatchedBatch(rows.view(experts, capacity * times, hidden), batch.counts * times), first, step)


def _live_rows(counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each live row its expert, its place among the expert's rows, and how many the expert has."""
    many = counts.long()
    owner = torch.repeat_interleave(torch.arange(len(many), device=many.device), many)
    within = torch.arange(len(owner), device=many.device) - (many.cumsum(0) - many)[owner]
    return owner, within, many[owner]


def _gathered(rows: Tensor, source: Tensor, first: Tensor, step: Tensor, times: int, total: int) -> Tensor:
    """`total` rows: row `source[i]` at each of `first[i] + r * step[i]`."""
    index = source.new_zeros(total)
    repetitions = torch.arange(times, device=rows.device)
    index[first.unsqueeze(1) + repetitions * step.unsqueeze(1)] = source.unsqueeze(1).expand(-1, times)
    return rows[index]
