"""Experts whose every product and sum is exact, so that a dispatcher must give the bits of one rank.

Expert e multiplies column h by a sign of its own; rows are whole numbers up to 3, but 3.5 in one of 128 columns, and
router weights 1 or 2. So a sum over 8 slots is at most 112 halves, which bfloat16 holds; and 3.5 makes the scale of an
FP8 wire 1 / 128, by which whole numbers up to 3 are codes. What went to another expert, with another weight, twice or
not at all changes the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from dispatching.shapes import Job
from torch import Tensor

from moesaic import BatchedBatch, GroupedBatch, Routing
from moesaic.batches import Batch, TokenBatch
from moesaic.dispatch.fleet import Call


@final
@dataclass(frozen=True, eq=False)
class ExactExperts:
    """`signs [L, H]` of the experts at hand."""

    signs: Tensor

    @classmethod
    def of(cls, job: Job) -> ExactExperts:
        """All of the layer, the same on every rank."""
        generator = torch.Generator(job.ranks.device).manual_seed(5)
        shape = (job.shape.num_experts, job.shape.hidden_size)
        signs = torch.randint(2, shape, generator=generator, device=job.ranks.device).mul_(2).sub_(1).to(job.dtype)
        return cls(signs)

    def select(self, experts: Sequence[int]) -> ExactExperts:
        """Some of them, in this order."""
        return ExactExperts(self.signs[list(experts)])

    def __call__(self, batch: Batch) -> Tensor:
        """As a backend's `run`: rows in the same places."""
        rows = batch.rows
        if isinstance(batch, BatchedBatch):
            return rows * self.signs.unsqueeze(1)
        if isinstance(batch, GroupedBatch):
            place = torch.arange(len(rows), dtype=batch.offsets.dtype, device=rows.device)
            return rows * self.signs[(torch.searchsorted(batch.offsets, place, right=True) - 1).clamp(min=0)]
        return self.summed(batch)

    def summed(self, batch: TokenBatch) -> Tensor:
        """Weighted and summed over the slots; zeros for a token without an active one."""
        routing, rows = batch.routing, batch.rows
        output = torch.zeros_like(rows, dtype=torch.float32)
        for ids, weights in zip(routing.topk_ids.unbind(1), routing.topk_weights.unbind(1), strict=True):
            active = ((ids >= 0) & (ids < len(self.signs))).unsqueeze(1)
            share = weights.unsqueeze(1) * self.signs[ids.clamp(0, len(self.signs) - 1)] * rows
            output += share.where(active, 0)
        return output.to(rows.dtype)


def exact_call(given: Call, seed: int) -> Call:
    """The routing of `given` with tokens and weights that make every sum exact."""
    rows, routing = given
    generator = torch.Generator(rows.device).manual_seed(seed)
    numbers = torch.randint(-3, 4, rows.shape, generator=generator, device=rows.device).to(rows.dtype)
    numbers[:, ::128] = 3.5
    ids = routing.topk_ids
    weights = torch.randint(1, 3, ids.shape, generator=generator, device=rows.device).float()
    return numbers, Routing(ids, weights)
