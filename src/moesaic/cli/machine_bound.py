"""MachineBound: the read bandwidth and the matmul rate that a machine was measured to have, and what they allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.cli.clocks import Clock
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

_REPEATS = 7


@final
@dataclass(frozen=True)
class MachineBound:
    """Nothing that reads its weights from memory and multiplies in this dtype is faster than these two allow."""

    bytes_per_second: float
    flops_per_second: float

    def seconds(self, work: Work) -> float:
        """The least time for `work`: the slower of its reads and its products."""
        return max(work.num_bytes / self.bytes_per_second, work.flops / self.flops_per_second)

    def reads_dominate(self, work: Work) -> bool:
        """True if memory, not arithmetic, bounds `work`."""
        return work.num_bytes / self.bytes_per_second >= work.flops / self.flops_per_second


@final
@dataclass(frozen=True)
class Work:
    """What one call cannot avoid: bytes of the experts touched and of the rows in and out, and the products."""

    num_bytes: int
    flops: int


def measure_bound(clock: Clock, device: torch.device, dtype: torch.dtype) -> MachineBound:
    """The best of a few sums over memory, and of a few square products in `dtype`."""
    large = torch.ones((2**31 if device.type == "cuda" else 2**28) // 4, device=device)
    reads = min(clock.seconds(large.sum) for _ in range(_REPEATS))
    side = 8192 if device.type == "cuda" else 1536
    left = torch.randn(side, side, device=device).to(dtype)  # of ones the product is faster: fewer bits change
    products = min(clock.seconds(lambda: left @ left) for _ in range(_REPEATS))
    return MachineBound(large.numel() * large.element_size() / reads, 2 * side**3 / products)


def work_of(problem: Problem, weights: ExpertWeights, batch: Batch) -> Work:
    """The work of one batch; reads ids or counts on the host."""
    if isinstance(batch, GroupedBatch | BatchedBatch):
        rows = int(batch.counts.sum())
        touched = int((batch.counts > 0).sum())
        moved = rows
    else:
        ids = batch.routing.topk_ids
        live = ids[(ids >= 0) & (ids < problem.num_experts)]
        rows, touched, moved = live.numel(), live.unique().numel(), batch.rows.shape[0]
    row_bytes = 2 * moved * problem.hidden_size * problem.dtype.itemsize
    return Work(weights.num_bytes * touched // problem.num_experts + row_bytes, problem.flops(rows))
