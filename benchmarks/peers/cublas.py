"""What cuBLAS' batched product makes of a layer whose experts all have equally many rows, in order already.

No gather, no sort, no activation; the weighted sum is a copy of as many bytes, so it runs at copy speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from layers.clock import Call
from layers.contender import Bound, Contender

from moesaic import ExpertWeights, Problem, StandardBatch

LEAST_ROWS = 64
"""Of an expert: below, bytes of weights decide and not products."""


@final
@dataclass(frozen=True)
class CuBLAS(Contender):
    """Its answer is that of no layer, so it is compared with nothing."""

    name: str = "cublas"
    tolerance: float | None = None
    scope: ClassVar[str] = "bound"

    def fits(self, problem: Problem, tokens: int) -> bool:
        """Whole groups, and enough rows."""
        rows, rest = divmod(tokens * problem.top_k, problem.num_experts)
        return rest == 0 and rows >= LEAST_ROWS

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """The weights as they are, read transposed."""
        gate_up, down = (part.data.transpose(1, 2) for part in (weights.gate_up, weights.down))

        def prepared(batch: StandardBatch) -> Call:
            tokens = len(batch.hidden_states)
            groups, hidden = problem.num_experts, problem.hidden_size
            size = (groups, tokens * problem.top_k // groups)
            rows = torch.randn(*size, hidden, device=gate_up.device).to(gate_up.dtype)
            inner = torch.randn(*size, problem.intermediate_size, device=gate_up.device).to(gate_up.dtype)
            width, products = rows.new_empty(*size, problem.width), torch.empty_like(rows)
            moved = tokens * hidden * (problem.top_k + 1) // 2  # a copy reads and writes each
            source, target = products.view(-1)[:moved], rows.new_empty(moved)

            def call() -> torch.Tensor:
                torch.bmm(rows, gate_up, out=width)
                torch.bmm(inner, down, out=products)
                return target.copy_(source)

            return call

        return prepared
