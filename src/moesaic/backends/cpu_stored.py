"""The form in which `CpuQuantized` keeps a layer's weights: expert by expert, as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_dequantized import DequantizedProjection, StoredProjection
from moesaic.backends.cpu_few import expert_ids
from moesaic.backends.cpu_int4 import Int4Projection
from moesaic.backends.cpu_int8 import Int8Projection
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True, eq=False)
class CpuStored:
    """Both projections of every expert."""

    gate_up: Sequence[StoredProjection]
    down: Sequence[StoredProjection]
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    output_scale: Tensor | None

    @classmethod
    def of(cls, weights: ExpertWeights, problem: Problem) -> CpuStored:
        """Each projection for the kernel that takes it."""
        experts = range(problem.num_experts)
        return cls(
            [_projection(weights.gate_up.expert(e), problem) for e in experts],
            [_projection(weights.down.expert(e), problem) for e in experts],
            weights.gate_up_bias,
            weights.down_bias,
            weights.output_scale,
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor held."""
        held = (tensor for projection in (*self.gate_up, *self.down) for tensor in projection.tensors)
        optional = (self.gate_up_bias, self.down_bias, self.output_scale)
        return (*held, *(tensor for tensor in optional if tensor is not None))

    def canonical(self) -> ExpertWeights:
        """The weights that came, bit for bit."""
        optional = (self.gate_up_bias, self.down_bias, self.output_scale)
        return ExpertWeights(_stacked(self.gate_up), _stacked(self.down), *optional)

    def compute(self, experts: list[int], counts: list[int], rows: Tensor, problem: Problem) -> Tensor:
        """Rows `[S, H]`, expert by expert, to their unweighted results, in float32 (float64 for float64).

        Rows are rounded to the input format before each projection, all together, so that one scale may serve them.
        Then everything stays in float32: a value that were rounded to bfloat16 before could fall to another code, and
        the largest of a row to another scale, which is an error of a whole step.
        """
        inputs = problem.scheme.inputs
        plain = isinstance(inputs, Plain)
        ids = expert_ids(experts, counts) if problem.activation.per_expert() else None
        rows = rows if plain else inputs.round_trip(rows.to(_wide(rows)))
        first = self._projected(self.gate_up, self.gate_up_bias, experts, counts, rows)
        inner = activate(problem.activation, first, ids, wide=None, out=None)
        inner = inner.to(problem.dtype) if plain else inputs.round_trip(inner)
        second = self._projected(self.down, self.down_bias, experts, counts, inner)
        if problem.output_norm is None or self.output_scale is None:
            return second
        return problem.output_norm(second, self.output_scale)

    def _projected(
        self,
        projections: Sequence[StoredProjection],
        bias: Tensor | None,
        experts: list[int],
        counts: list[int],
        rows: Tensor,
    ) -> Tensor:
        """`rows @ weight.T + bias`, expert by expert; products in the dtype of `rows`, the sum as wide as results."""
        wide = _wide(rows)
        pieces: list[Tensor] = []
        for expert, piece in zip(experts, rows.split(counts), strict=True):
            product = projections[expert](piece).to(wide)
            pieces.append(product if bias is None else product + bias[expert].to(wide))
        return torch.cat(pieces)


def _projection(weight: Quantized, problem: Problem) -> StoredProjection:
    """The kernel that takes `weight`; rows that were rounded to a format are wider than kernels take."""
    if isinstance(problem.scheme.inputs, Plain):
        if Int8Projection.takes(weight, problem.dtype):
            return Int8Projection.of(weight)
        return Int4Projection.of(weight, problem.dtype) or DequantizedProjection(weight)
    return DequantizedProjection(weight)


def _stacked(projections: Sequence[StoredProjection]) -> Quantized:
    each = [projection.stored() for projection in projections]
    scales = {name: torch.stack([stored.scales[name] for stored in each]) for name in each[0].scales}
    return replace(each[0], data=torch.stack([stored.data for stored in each]), scales=scales)


def _wide(rows: Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32
