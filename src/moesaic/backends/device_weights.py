"""Weights as the Triton kernels read them: the canonical tensors, dense, and what a launch needs of the activation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from moesaic.problem import Problem
from moesaic.quant import Quantized
from moesaic.weights import ExpertWeights

if TYPE_CHECKING:
    from moesaic.kernels.activation_expressions import Expression

ROW_BYTES = 16
"""What rows begin at multiples of: one vector load, and what TMA asks for."""


@final
@dataclass(frozen=True, eq=False)
class DeviceWeights:
    """Nothing is packed: kernels read the canonical form, so every size of batch shares one copy."""

    weights: ExpertWeights
    expression: Expression
    """The activation; its per-expert constants lie on the device, filled once."""

    @classmethod
    def of(cls, weights: ExpertWeights, problem: Problem) -> DeviceWeights:
        """Copies only a projection whose rows are not dense or not aligned."""
        from moesaic.kernels.activation_expressions import expression  # noqa: PLC0415

        gate_up = Quantized(weights.gate_up.format, dense(weights.gate_up.data.detach()))
        down = Quantized(weights.down.format, dense(weights.down.data.detach()))
        biases = (weights.gate_up_bias, weights.down_bias)
        taken = (None if bias is None else bias.detach().contiguous() for bias in biases)
        held = replace(
            weights, gate_up=gate_up, down=down, **dict(zip(("gate_up_bias", "down_bias"), taken, strict=True))
        )
        return cls(held, expression(problem.activation, gate_up.data.device))

    @property
    def gate_up(self) -> Tensor:
        """`[L, width, H]`."""
        return self.weights.gate_up.data

    @property
    def down(self) -> Tensor:
        """`[L, H, I]`."""
        return self.weights.down.data

    @property
    def biases(self) -> tuple[Tensor | None, Tensor | None]:
        """Of both projections."""
        return self.weights.gate_up_bias, self.weights.down_bias

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that is kept alive."""
        return (*self.weights.tensors, *(c for c in self.expression.constants if isinstance(c, Tensor)))


def dense(values: Tensor) -> Tensor:
    """`values`, copied unless they are contiguous and begin at a multiple of 16 bytes."""
    if values.is_contiguous() and values.data_ptr() % ROW_BYTES == 0:
        return values
    return values.clone(memory_format=torch.contiguous_format)


def dense_rows(values: Tensor) -> Tensor:
    """`values` [T, H], copied unless each row is dense and begins at a multiple of 16 bytes."""
    step = values.stride(0) * values.element_size()
    if values.stride(1) == 1 and step % ROW_BYTES == 0 and values.data_ptr() % ROW_BYTES == 0:
        return values
    return values.clone(memory_format=torch.contiguous_format)
