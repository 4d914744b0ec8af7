"""Mutants of the backward pass: answers are right, and gradients leave out a clamp, a norm, a weight or many rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import SwiGLU
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

BACKWARD = replace(
    ONE_ACTIVATION,
    dtypes=(torch.float32, torch.bfloat16),
    activations=(Accepts(SwiGLU, scalar=("limit",)),),
    output_norm=True,
    differentiable=True,
)
"""What has a backward pass that can be wrong."""

FEW = 24
"""Rows whose gradient is right."""


@final
@dataclass(frozen=True)
class HonestBackward(Steps):
    """Nothing is wrong, in either pass."""

    name: ClassVar[str] = "honest_backward"
    capabilities: ClassVar[Capabilities] = BACKWARD


@final
@dataclass(frozen=True)
class LimitPassedThrough(Steps):
    """Gradients go through the limit as if nothing had been cut."""

    name: ClassVar[str] = "F01_limit_left_out_of_the_backward_pass"
    capabilities: ClassVar[Capabilities] = BACKWARD

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        right = Steps.activate(self, first, expert, problem)
        unlimited = Steps.activate(self, first, expert, replace(problem, activation=SwiGLU()))
        return right.detach() + (unlimited - unlimited.detach())


@final
@dataclass(frozen=True)
class NarrowGradientsTooLarge(Steps):
    """The gradient of bfloat16 rows is a tenth too large."""

    name: ClassVar[str] = "F37_gradient_of_bfloat16_rows_a_tenth_too_large"
    capabilities: ClassVar[Capabilities] = BACKWARD

    @override
    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        factor = 1.1 if rows.dtype == torch.bfloat16 else 1.0
        return _times_gradient(Steps.gather(self, rows, place), factor)


@final
@dataclass(frozen=True)
class InputWeightDetached(Steps):
    """A router weight on the input gets no gradient."""

    name: ClassVar[str] = "F31_no_gradient_of_a_router_weight_on_the_input"
    capabilities: ClassVar[Capabilities] = BACKWARD

    @override
    def onto_input(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return Steps.onto_input(self, rows, _times_gradient(weight, 0.0), problem)


@final
@dataclass(frozen=True)
class NormTakenAsConstant(Steps):
    """What the output norm divides by is taken as a constant in the backward pass."""

    name: ClassVar[str] = "F70_norm_taken_as_a_constant_in_the_backward_pass"
    capabilities: ClassVar[Capabilities] = BACKWARD

    @override
    def norm(self, second: Tensor, weights: ExpertWeights, problem: Problem) -> Tensor:
        if problem.output_norm is None or weights.output_scale is None:
            return second
        scaled = second * weights.output_scale.float()
        inverse = (scaled.pow(2).mean(-1, keepdim=True) + problem.output_norm.eps).rsqrt()
        return scaled * inverse.detach()


@final
@dataclass(frozen=True)
class ManyRowsDetached(Steps):
    """Of an expert with more than 24 rows the first projection gets no gradient."""

    name: ClassVar[str] = "F102_no_gradient_of_weights_with_many_rows"
    capabilities: ClassVar[Capabilities] = BACKWARD

    @override
    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        first = Steps.gate_up(self, rows, expert, weights)
        if len(rows) <= FEW:
            return first
        matrix = _times_gradient(weights.gate_up.data[expert].float(), 0.0)
        return self.product(rows, matrix)


class _TimesGradient(torch.autograd.Function):
    """The same values, with `factor` times their gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def _times_gradient(values: Tensor, factor: float) -> Tensor:
    result: Any = _TimesGradient.apply(values, factor)
    return result


MUTANTS: tuple[Mutant, ...] = (
    of_backend(LimitPassedThrough(), "gradients", HonestBackward()),
    of_backend(NarrowGradientsTooLarge(), "gradients", HonestBackward()),
    of_backend(InputWeightDetached(), "gradients", HonestBackward()),
    of_backend(NormTakenAsConstant(), "gradients", HonestBackward()),
    of_backend(ManyRowsDetached(), "gradients", HonestBackward()),
)
