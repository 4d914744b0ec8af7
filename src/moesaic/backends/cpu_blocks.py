"""One expert's rows on a CPU, block by block, in buffers that every block uses again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_weights import CpuWeights
from moesaic.problem import Problem

BLOCK_ROWS = 512
"""Rows handled at once: at 2I = 1024 their float32 activation is 2 MiB, about one core's L2 cache."""

EXACT_ROWS = 64
"""Blocks of more rows are rounded up to ROUNDING: oneDNN compiles a kernel (0.3 ms) for each new row count."""

ROUNDING = 8
"""Rows that a rounded block is a multiple of; the surplus rows hold whatever the buffer held and are not read."""


@final
@dataclass(frozen=True, eq=False)
class Blocks:
    """Buffers for blocks of one problem: fresh memory would be faulted in page by page for each of them."""

    rows: Tensor
    wide: Tensor
    inner: Tensor

    @classmethod
    def of(cls, problem: Problem, num_rows: int) -> Blocks:
        """Buffers for experts of at most `num_rows` rows."""
        height = _rounded(min(num_rows, BLOCK_ROWS))
        return cls(
            rows=torch.empty(height, problem.hidden_size, dtype=problem.dtype, device="cpu"),
            wide=torch.empty(height, problem.width, dtype=torch.float32, device="cpu"),
            inner=torch.empty(height, problem.intermediate_size, dtype=problem.dtype, device="cpu"),
        )

    def compute(self, output: Tensor, expert: int, weights: CpuWeights, problem: Problem) -> None:
        """Write to `output` the results of as many rows as it has; they are the first of `self.rows`."""
        height = _rounded(output.shape[0])
        first = weights.gate_up[expert](self.rows[:height])
        inner = activate(weights.activations[expert], first, None, wide=self.wide[:height], out=self.inner[:height])
        output.copy_(weights.normed(weights.down[expert](inner), problem)[: output.shape[0]])


def blocks_between(start: int, stop: int) -> list[slice]:
    """The blocks of rows `start` to `stop`."""
    return [slice(at, min(at + BLOCK_ROWS, stop)) for at in range(start, stop, BLOCK_ROWS)]


def _rounded(num_rows: int) -> int:
    return num_rows if num_rows <= EXACT_ROWS else -(-num_rows // ROUNDING) * ROUNDING
