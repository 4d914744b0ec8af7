"""The CPU backend's own form of a layer's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.activations import Activation
from moesaic.backends.cpu_projection import Projection
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True, eq=False)
class CpuWeights:
    """Both projections of every expert, and the activation with each expert's own constants."""

    gate_up: Sequence[Projection]
    down: Sequence[Projection]
    activations: Sequence[Activation]
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    output_scale: Tensor | None
    per_expert: bool
    """Whether a constant of the activation differs between experts."""

    @classmethod
    def of(cls, weights: ExpertWeights, problem: Problem) -> CpuWeights:
        """Pack the canonical weights, expert by expert."""
        experts = range(problem.num_experts)
        first, second, scale = weights.gate_up_bias, weights.down_bias, weights.output_scale
        return cls(
            gate_up=[Projection.of(weights.gate_up.data[e], None if first is None else first[e]) for e in experts],
            down=[Projection.of(weights.down.data[e], None if second is None else second[e]) for e in experts],
            activations=[problem.activation.select([e]) for e in experts],
            gate_up_bias=None if first is None else first.detach(),
            down_bias=None if second is None else second.detach(),
            output_scale=None if scale is None else scale.detach(),
            per_expert=bool(problem.activation.per_expert()),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor held."""
        projections = (*self.gate_up, *self.down)
        held = (*(p.weight for p in projections), *(p.bias for p in projections))
        return tuple(t for t in (*held, self.gate_up_bias, self.down_bias, self.output_scale) if t is not None)

    def canonical(self) -> ExpertWeights:
        """The weights that were packed, bit for bit."""
        return ExpertWeights.plain(
            torch.stack([projection.dense() for projection in self.gate_up]),
            torch.stack([projection.dense() for projection in self.down]),
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
            output_scale=self.output_scale,
        )

    def normed(self, rows: Tensor, problem: Problem) -> Tensor:
        """`rows` under the problem's output norm, computed in float32; as they are if it has none."""
        if problem.output_norm is None or self.output_scale is None:
            return rows
        wide = rows if rows.dtype == torch.float64 else rows.float()
        return problem.output_norm(wide, self.output_scale).to(rows.dtype)
