"""Mutants of size: rows and router weights that are large, zero or negative, and offsets that are large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import ANYWHERE, Honest, HonestAnywhere, of_backend
from moesaic.conformance.mutants.judge_backend import BackendJudge
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

WRAP = 2**24
"""Elements at which the offsets of these mutants wrap, as 32-bit ones do at 2**31."""

INNER_WRAP = 2**20
"""The same within the rows of one expert."""

LARGE = BackendJudge(beyond=WRAP)
"""64 MiB of float32 are large to it."""


@final
@dataclass(frozen=True)
class SigmoidOverflows(Steps):
    """SiLU is `x * exp(x) / (1 + exp(x))`, which is NaN where float32's exponential overflows, from 89 on."""

    name: ClassVar[str] = "F06_sigmoid_of_large_rows_overflows"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        gate, up = first.chunk(2, dim=-1)
        return gate * (gate.exp() / (1 + gate.exp())) * up


@final
@dataclass(frozen=True)
class RowsCapped(Steps):
    """Rows are cut to 448, the largest value of the narrow format that a kernel shares its code with."""

    name: ClassVar[str] = "F50_rows_cut_to_448"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        return Steps.gather(self, rows, place).clamp(-448.0, 448.0)


@final
@dataclass(frozen=True)
class NegativeWeightsLost(Steps):
    """A slot whose router weight is negative is taken for one that nobody chose."""

    name: ClassVar[str] = "F18_slot_of_a_negative_weight_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return Steps.weight(self, batch, token, slot).clamp(min=0.0)


@final
@dataclass(frozen=True)
class LargeWeightsCut(Steps):
    """Router weights are taken for probabilities, and cut where a scaling factor makes them more than two."""

    name: ClassVar[str] = "F32_router_weights_cut_at_two"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return Steps.weight(self, batch, token, slot).clamp(max=2.0)


@final
@dataclass(frozen=True)
class WeightDividesItself(Steps):
    """Rows are divided by a router weight that was multiplied into them, which of zero makes NaN."""

    name: ClassVar[str] = "F40_divided_by_a_router_weight_of_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def onto_output(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return Steps.onto_output(self, rows * weight / weight, weight, problem)


@final
@dataclass(frozen=True)
class RowOffsetsWrap(Steps):
    """Offsets of rows wrap in every layout, at 2**24 elements."""

    name: ClassVar[str] = "F100_row_offsets_wrap_in_every_layout"
    capabilities: ClassVar[Capabilities] = ANYWHERE

    @override
    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        return Steps.gather(self, rows, _wrapped(place, rows.shape[1], WRAP))


@final
@dataclass(frozen=True)
class InnerOffsetsWrap(Steps):
    """Offsets between the projections wrap, at 2**20 elements of an expert."""

    name: ClassVar[str] = "F100_inner_offsets_wrap"
    capabilities: ClassVar[Capabilities] = ANYWHERE

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        inner = Steps.activate(self, first, expert, problem)
        place = torch.arange(len(inner), device=inner.device)
        return inner[_wrapped(place, inner.shape[1], INNER_WRAP)]


@final
@dataclass(frozen=True)
class ExpertOffsetsWrap(Steps):
    """The number of an expert times the elements of its second projection wraps, at 2**24."""

    name: ClassVar[str] = "F100_expert_offsets_wrap"
    capabilities: ClassVar[Capabilities] = ANYWHERE

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        every = weights.down.data
        start = expert * every[0].numel() % WRAP
        return self.product(rows, every.flatten()[start : start + every[0].numel()].view_as(every[0]))


def _wrapped(place: Tensor, width: int, wrap: int) -> Tensor:
    return place * width % wrap // width


MUTANTS: tuple[Mutant, ...] = (
    of_backend(SigmoidOverflows(), "wide_values", Honest()),
    of_backend(RowsCapped(), "wide_values", Honest()),
    of_backend(NegativeWeightsLost(), "wide_values", Honest()),
    of_backend(LargeWeightsCut(), "wide_values", Honest()),
    of_backend(WeightDividesItself(), "wide_values", Honest()),
    of_backend(RowOffsetsWrap(), "large_addresses", HonestAnywhere(), LARGE),
    of_backend(InnerOffsetsWrap(), "large_inner_rows", HonestAnywhere(), LARGE),
    of_backend(ExpertOffsetsWrap(), "large_weights", HonestAnywhere(), LARGE),
)
