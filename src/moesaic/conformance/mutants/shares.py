"""Mutants that are off by a little: a factor near 1, which hides in the rounding of 16-bit rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import HonestWide, of_backend
from moesaic.conformance.mutants.numbers import NARROW
from moesaic.conformance.mutants.steps import PLAIN, Steps
from moesaic.layouts import BatchedExperts, GroupedContiguous
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

PLACED = replace(
    PLAIN, dtypes=(torch.bfloat16,), layouts=(GroupedContiguous(), BatchedExperts()), weight_on_input=False
)
"""The layouts without routing, in bfloat16."""


def cut(values: Tensor) -> Tensor:
    """Float32 cut to the bits of bfloat16 instead of rounded."""
    return (values.contiguous().view(torch.int32) & -65536).view(torch.float32)


@final
@dataclass(frozen=True)
class HonestPlaced(Steps):
    """Nothing is wrong, in bfloat16 in the layouts without routing."""

    name: ClassVar[str] = "honest_placed"
    capabilities: ClassVar[Capabilities] = PLACED


@final
@dataclass(frozen=True)
class OutputTooLarge(Steps):
    """The answer is half a percent too large."""

    name: ClassVar[str] = "F31_output_times_1_005"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return (total * 1.005).to(problem.dtype)


@final
@dataclass(frozen=True)
class WeightsCut(Steps):
    """Router weights are cut to bfloat16, so they are 0.27 % too small on average."""

    name: ClassVar[str] = "F37_router_weights_cut_to_bfloat16"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return cut(Steps.weight(self, batch, token, slot))


@final
@dataclass(frozen=True)
class OutputCut(Steps):
    """The answer is cut to bfloat16 instead of rounded."""

    name: ClassVar[str] = "F37_bfloat16_output_cut_instead_of_rounded"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return cut(total).to(problem.dtype)


@final
@dataclass(frozen=True)
class InnerCut(Steps):
    """The activation's result is cut to bfloat16 on its way to the second projection."""

    name: ClassVar[str] = "F37_activation_cut_to_bfloat16"
    capabilities: ClassVar[Capabilities] = PLACED

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return cut(Steps.activate(self, first, expert, problem))


@final
@dataclass(frozen=True)
class ScaleOff(Steps):
    """The scale of the second projection is half a percent too small."""

    name: ClassVar[str] = "F45_scale_of_the_second_projection_off"
    capabilities: ClassVar[Capabilities] = PLACED

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        return Steps.down(self, rows, expert, weights) * 0.995


@final
@dataclass(frozen=True)
class OneExpertOff(Steps):
    """The answers of the last expert are one percent too large."""

    name: ClassVar[str] = "F46_one_expert_off_by_a_percent"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        second = Steps.down(self, rows, expert, weights)
        return second * 1.01 if expert == len(weights.down.data) - 1 else second


@final
@dataclass(frozen=True)
class OneColumnOff(Steps):
    """One column of the answer has a scale that is two percent too large."""

    name: ClassVar[str] = "F46_one_column_off_by_two_percent"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        second = Steps.down(self, rows, expert, weights)
        second[:, 3] *= 1.02
        return second


@final
@dataclass(frozen=True)
class OneRowOff(Steps):
    """The sixth row of a tile has a scale that is three percent too small."""

    name: ClassVar[str] = "F46_one_row_off_by_three_percent"
    capabilities: ClassVar[Capabilities] = PLACED

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        second = Steps.down(self, rows, expert, weights)
        second[5:6] *= 0.97
        return second


MUTANTS: tuple[Mutant, ...] = tuple(
    of_backend(subject, "systematic", control)
    for subject, control in (
        (OutputTooLarge(), HonestWide()),
        (WeightsCut(), HonestWide()),
        (OutputCut(), HonestWide()),
        (OneExpertOff(), HonestWide()),
        (OneColumnOff(), HonestWide()),
        (InnerCut(), HonestPlaced()),
        (ScaleOff(), HonestPlaced()),
        (OneRowOff(), HonestPlaced()),
    )
)
