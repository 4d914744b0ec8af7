"""Mutants of figures that models have: long sums, round numbers of experts, published constants, small values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import SwiGLU
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.problem import Problem

CONSTANTS = replace(ONE_ACTIVATION, activations=(Accepts(SwiGLU, scalar=("alpha", "beta", "limit")),))
NARROW = replace(ONE_ACTIVATION, dtypes=(torch.bfloat16,))


@final
@dataclass(frozen=True)
class HonestNarrow(Steps):
    """Nothing is wrong, in bfloat16."""

    name: ClassVar[str] = "honest_narrow"
    capabilities: ClassVar[Capabilities] = NARROW


@final
@dataclass(frozen=True)
class LastExpertOfSixteen(Steps):
    """Where their number is a multiple of 16, the last expert is left out."""

    name: ClassVar[str] = "F42_last_expert_lost_where_they_fill_blocks_of_16"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def order(self, problem: Problem) -> range:
        return range(problem.num_experts - (problem.num_experts % 16 == 0))


@final
@dataclass(frozen=True)
class SumPast4096Lost(Steps):
    """A sum ends after 4096 columns."""

    name: ClassVar[str] = "F24_sum_past_4096_columns_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return Steps.product(self, rows[:, :4096], matrix[:, :4096])


@final
@dataclass(frozen=True)
class PathOfGptOss(Steps):
    """The path for gpt-oss's constants forgets what is added to up, and the limit."""

    name: ClassVar[str] = "F03_path_of_gpt_oss_forgets_beta_and_limit"
    capabilities: ClassVar[Capabilities] = CONSTANTS

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        if problem.activation == SwiGLU(alpha=1.702, beta=1.0, limit=7.0):
            problem = replace(problem, activation=SwiGLU(alpha=1.702))
        return Steps.activate(self, first, expert, problem)


@final
@dataclass(frozen=True)
class SmallWeightsPruned(Steps):
    """Slots whose router weight is above zero and below 0.05 are left out."""

    name: ClassVar[str] = "F31_slots_of_small_router_weights_left_out"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        weight = Steps.weight(self, batch, token, slot)
        return torch.where((weight > 0) & (weight < 0.05), 0.0, weight)


@final
@dataclass(frozen=True)
class SmallValuesFlushed(Steps):
    """Values of rows below 1e-3 are taken as zero."""

    name: ClassVar[str] = "F50_small_values_flushed_to_zero"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        gathered = Steps.gather(self, rows, place)
        return torch.where(gathered.abs() < 1e-3, 0.0, gathered)


@final
@dataclass(frozen=True)
class NegativeLostWhereLimited(Steps):
    """The path for a limit takes a slot of a negative router weight for one that nobody chose."""

    name: ClassVar[str] = "F18_negative_weights_lost_where_there_is_a_limit"
    capabilities: ClassVar[Capabilities] = CONSTANTS

    @override
    def onto_output(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        limited = isinstance(problem.activation, SwiGLU) and problem.activation.limit is not None
        return Steps.onto_output(self, rows, weight.clamp(min=0.0) if limited else weight, problem)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(LastExpertOfSixteen(), "equals_reference", Honest()),
    of_backend(SumPast4096Lost(), "equals_reference", Honest()),
    of_backend(PathOfGptOss(), "equals_reference", Honest()),
    of_backend(SmallWeightsPruned(), "wide_values", Honest()),
    of_backend(SmallValuesFlushed(), "wide_values", HonestNarrow()),
    of_backend(NegativeLostWhereLimited(), "wide_values", Honest()),
)
