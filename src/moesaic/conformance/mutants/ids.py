"""Mutants of ids: inactive slots, duplicates, ids out of range, the numbering of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.layouts import PaddedStandard
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

PADDED = replace(ONE_ACTIVATION, layouts=(PaddedStandard(),))


@final
@dataclass(frozen=True)
class MinusOneIsLast(Steps):
    """The id -1 counts from the end, as an index does."""

    name: ClassVar[str] = "F14_minus_one_is_the_last_expert"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        return torch.where(ids == -1, problem.num_experts - 1, ids)


@final
@dataclass(frozen=True)
class PastTheEndIsLast(Steps):
    """An id past the last expert is clamped to it."""

    name: ClassVar[str] = "F17_id_past_the_end_clamped"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        return batch.routing.topk_ids.clamp(max=problem.num_experts - 1)


@final
@dataclass(frozen=True)
class ModuloExperts(Steps):
    """Ids are taken modulo the number of experts."""

    name: ClassVar[str] = "F17_ids_wrap_around"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        return batch.routing.topk_ids % problem.num_experts


@final
@dataclass(frozen=True)
class OnlyMinusOneIsNobody(Steps):
    """Ids other than -1 index the experts: past the end is an error of its own."""

    name: ClassVar[str] = "F17_only_minus_one_is_inactive"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        table = torch.arange(problem.num_experts)
        ids = batch.routing.topk_ids.long()
        return torch.where(ids == -1, -1, table[ids.clamp(min=0)])


@final
@dataclass(frozen=True)
class InactiveOnZero(Steps):
    """An inactive slot is computed on expert 0 and its weight set to zero."""

    name: ClassVar[str] = "F18_inactive_slot_computed_on_expert_0"
    capabilities: ClassVar[Capabilities] = PADDED

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        return torch.where((ids < 0) | (ids >= problem.num_experts), 0, ids)

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        ids, weights = batch.routing.topk_ids[token, slot], batch.routing.topk_weights[token, slot]
        return weights * ((ids >= 0) & (ids < 64))


@final
@dataclass(frozen=True)
class IdleExpertAdded(Steps):
    """An expert that no slot names is computed and added with weight zero."""

    name: ClassVar[str] = "F18_idle_expert_added_with_weight_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        total = Steps.tokens(self, batch, weights, problem)
        for expert in range(problem.num_experts):
            if not (batch.routing.topk_ids == expert).any():
                row = batch.hidden_states.new_ones(1, problem.hidden_size)
                total = total + 0 * self.expert(row, expert, weights, problem)
        return total


@final
@dataclass(frozen=True)
class FirstExpertComputed(Steps):
    """Expert 0 is computed for a tile that nothing filled, and added with weight zero."""

    name: ClassVar[str] = "F18_first_expert_computed_without_rows"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        nothing = batch.hidden_states.new_zeros(1, problem.hidden_size)
        return Steps.tokens(self, batch, weights, problem) + 0 * self.expert(nothing, 0, weights, problem)


@final
@dataclass(frozen=True)
class LastExpertComputed(Steps):
    """The last expert is computed for the rows behind the last group, and added with weight zero."""

    name: ClassVar[str] = "F14_last_expert_computed_without_rows"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        nothing = batch.hidden_states.new_zeros(1, problem.hidden_size)
        extra = self.expert(nothing, problem.num_experts - 1, weights, problem)
        return Steps.tokens(self, batch, weights, problem) + 0 * extra


@final
@dataclass(frozen=True)
class DuplicatesLost(Steps):
    """A token that names an expert twice is computed for one slot only."""

    name: ClassVar[str] = "F26_duplicate_slot_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def members(self, ids: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        token = torch.where((ids == expert).any(1))[0]
        return token, (ids[token] == expert).int().argmax(1)


@final
@dataclass(frozen=True)
class ManyDuplicatesLost(Steps):
    """The path for one token has room for seven slots of an expert; the eighth is lost."""

    name: ClassVar[str] = "F26_eighth_duplicate_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def members(self, ids: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        named = ids == expert
        token, slot = torch.where(named & (named.cumsum(1) <= 7) if len(ids) == 1 else named)
        return token, slot


@final
@dataclass(frozen=True)
class DuplicatesOverwrite(Steps):
    """Results are written and not added where a token comes twice at an expert."""

    name: ClassVar[str] = "F26_duplicates_overwrite_each_other"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def add(self, total: Tensor, token: Tensor, rows: Tensor) -> Tensor:
        total = total.clone()
        total[token] = total[token] + rows
        return total


@final
@dataclass(frozen=True)
class SlotsOfTheProblem(Steps):
    """The number of slots is taken from the problem and not from the batch."""

    name: ClassVar[str] = "F22_slots_of_the_problem"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        return batch.routing.topk_ids.reshape(-1, problem.top_k)


@final
@dataclass(frozen=True)
class LastSlotLost(Steps):
    """The slot with the lowest weight is left out."""

    name: ClassVar[str] = "F31_slot_of_the_lowest_weight_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids, weights = batch.routing.topk_ids, batch.routing.topk_weights
        if ids.shape[1] == 1:
            return ids
        lowest = torch.where(ids >= 0, weights, torch.inf).nan_to_num(nan=torch.inf).argmin(1, keepdim=True)
        return ids.scatter(1, lowest, -1)


@final
@dataclass(frozen=True)
class LastExpertLost(Steps):
    """The loop over experts ends one too early."""

    name: ClassVar[str] = "F76_last_expert_left_out"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.tokens(self, batch, weights, replace(problem, num_experts=max(1, problem.num_experts - 1)))


MUTANTS: tuple[Mutant, ...] = (
    of_backend(MinusOneIsLast(), "garbage_ids", Honest()),
    of_backend(PastTheEndIsLast(), "garbage_ids", Honest()),
    of_backend(ModuloExperts(), "garbage_ids", Honest()),
    of_backend(OnlyMinusOneIsNobody(), "garbage_ids", Honest()),
    of_backend(InactiveOnZero(), "undefined_rows", Honest()),
    of_backend(IdleExpertAdded(), "idle_expert", Honest()),
    of_backend(FirstExpertComputed(), "idle_expert", Honest()),
    of_backend(LastExpertComputed(), "idle_expert", Honest()),
    of_backend(DuplicatesLost(), "duplicate_ids", Honest()),
    of_backend(ManyDuplicatesLost(), "duplicate_ids", Honest()),
    of_backend(DuplicatesOverwrite(), "duplicate_ids", Honest()),
    of_backend(SlotsOfTheProblem(), "fewer_slots", Honest()),
    of_backend(LastSlotLost(), "exactly_once", Honest()),
    of_backend(LastExpertLost(), "exactly_once", Honest()),
)
