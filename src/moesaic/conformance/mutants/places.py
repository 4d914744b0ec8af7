"""Mutants of layouts: padding, gaps, offsets, counts and capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import BatchedBatch, GroupedBatch, PaddedStandardBatch, TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Span, Steps
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

GROUPED = replace(ONE_ACTIVATION, layouts=(GroupedContiguous(),), weight_on_input=False)
BATCHED = replace(ONE_ACTIVATION, layouts=(BatchedExperts(),), weight_on_input=False)
PADDED = replace(ONE_ACTIVATION, layouts=(PaddedStandard(),))


@final
@dataclass(frozen=True)
class PaddingSummed(Steps):
    """The sum of all rows, padding included, is added with weight zero."""

    name: ClassVar[str] = "F15_padded_rows_read"
    capabilities: ClassVar[Capabilities] = PADDED

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.tokens(self, batch, weights, problem) + 0 * batch.rows.sum()


@final
@dataclass(frozen=True)
class InactiveWeightTimesZero(Steps):
    """The weight of an inactive slot is multiplied by zero instead of left out."""

    name: ClassVar[str] = "F15_inactive_weight_times_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        dead = (ids < 0) | (ids >= problem.num_experts)
        read = (batch.routing.topk_weights * dead * 0).sum(1, keepdim=True)
        return Steps.tokens(self, batch, weights, problem) + read


@final
@dataclass(frozen=True)
class TokenWithoutSlotsUndefined(Steps):
    """A token without an active slot is left as the allocator gave it, under Standard."""

    name: ClassVar[str] = "F15_row_without_a_slot_undefined"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        output = torch.empty_like(batch.hidden_states)
        ids = batch.routing.topk_ids
        live = ((ids >= 0) & (ids < problem.num_experts)).any(1)
        return output.index_copy_(0, torch.where(live)[0], Steps.tokens(self, batch, weights, problem)[live])


@final
@dataclass(frozen=True)
class AccumulatorNotZeroed(Steps):
    """Results are added to memory that nobody zeroed."""

    name: ClassVar[str] = "F58_accumulator_not_zeroed"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def zeros(self, rows: Tensor) -> Tensor:
        return torch.empty(rows.shape) * 0


@final
@dataclass(frozen=True)
class InputReturnedForIdle(Steps):
    """A token without an active slot gets its own row back."""

    name: ClassVar[str] = "F15_row_without_a_slot_is_the_input"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        live = ((ids >= 0) & (ids < problem.num_experts)).any(1, keepdim=True)
        return torch.where(live, Steps.tokens(self, batch, weights, problem), batch.hidden_states)


@final
@dataclass(frozen=True)
class ValidRowsInFewBlocks(Steps):
    """The valid rows are taken to lie in at most five blocks."""

    name: ClassVar[str] = "F21_valid_rows_in_five_blocks_at_most"
    capabilities: ClassVar[Capabilities] = PADDED

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        live = ((ids >= 0) & (ids < problem.num_experts)).any(1).int()
        block = (live.diff(prepend=live.new_zeros(1)) > 0).cumsum(0)
        return torch.where((block <= 5).unsqueeze(1), ids, -1) if ids.shape[1] > 1 else ids


@final
@dataclass(frozen=True)
class CountTakenForLastRow(Steps):
    """num_valid is taken for the number of active rows, so padding in the middle cuts the end."""

    name: ClassVar[str] = "F21_count_taken_for_the_last_row"
    capabilities: ClassVar[Capabilities] = PADDED

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        live = ((ids >= 0) & (ids < problem.num_experts)).any(1)
        known = isinstance(batch, PaddedStandardBatch) and batch.num_valid is not None
        rows = torch.arange(len(ids)).unsqueeze(1)
        return torch.where(rows < live.sum(), ids, -1) if known else ids


@final
@dataclass(frozen=True)
class OffsetsIgnored(Steps):
    """Groups are taken to lie one behind the other."""

    name: ClassVar[str] = "F20_offsets_ignored"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        ends = batch.counts.cumsum(0)
        dense = replace(batch, offsets=(ends - batch.counts).int())
        return Steps.groups(self, dense)


@final
@dataclass(frozen=True)
class GapsSummed(Steps):
    """The sum of all rows, gaps included, is added with weight zero."""

    name: ClassVar[str] = "F15_gap_rows_added_with_weight_zero"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def placed(self, rows: Tensor, spans: Sequence[Span], weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.placed(self, rows, spans, weights, problem) + 0 * rows.sum()


@final
@dataclass(frozen=True)
class CountOneTooFew(Steps):
    """The last row of every group is left out."""

    name: ClassVar[str] = "F21_count_one_too_few"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        return [(expert, start, count - 1) for expert, start, count in Steps.groups(self, batch) if count > 1]


@final
@dataclass(frozen=True)
class EmptyGroupFails(Steps):
    """An expert without rows in the middle is an error."""

    name: ClassVar[str] = "F25_empty_expert_raises"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        return [
            (e, s, c)
            for e, s, c in zip(range(64), batch.offsets.tolist(), batch.counts.tolist(), strict=False)
            if c // c
        ]


@final
@dataclass(frozen=True)
class GroupOfNextExpert(Steps):
    """Empty experts are skipped without counting them, so later groups meet other weights."""

    name: ClassVar[str] = "F20_empty_expert_shifts_the_others"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        return [(expert, start, count) for expert, (_, start, count) in enumerate(Steps.groups(self, batch))]


@final
@dataclass(frozen=True)
class CapacityAsCount(Steps):
    """The sum of whole slabs is added with weight zero."""

    name: ClassVar[str] = "F21_capacity_taken_as_count"
    capabilities: ClassVar[Capabilities] = BATCHED

    @override
    def placed(self, rows: Tensor, spans: Sequence[Span], weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.placed(self, rows, spans, weights, problem) + 0 * rows.sum()


@final
@dataclass(frozen=True)
class SearchPastTheLast(Steps):
    """The search among more than five experts takes a third step, past the last one if that one holds all rows."""

    name: ClassVar[str] = "F21_search_past_the_last_expert"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        spans, last = Steps.groups(self, batch), len(batch.counts) - 1
        if [expert for expert, _, _ in spans] == [last] and last >= 5:
            return [(0, start, count) for _, start, count in spans]
        return spans


@final
@dataclass(frozen=True)
class CountsOfExpertBefore(Steps):
    """Counts are read one expert too early."""

    name: ClassVar[str] = "F21_counts_of_the_expert_before"
    capabilities: ClassVar[Capabilities] = BATCHED

    @override
    def slabs(self, batch: BatchedBatch) -> list[Span]:
        return Steps.slabs(self, replace(batch, counts=batch.counts.roll(1)))


@final
@dataclass(frozen=True)
class GapSetsScale(Steps):
    """Rows are scaled by the largest of all, gaps included, where NaN does not count."""

    name: ClassVar[str] = "F19_gaps_set_the_scale"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def placed(self, rows: Tensor, spans: Sequence[Span], weights: ExpertWeights, problem: Problem) -> Tensor:
        largest = rows.nan_to_num(nan=0.0, posinf=0.0).abs().max() if rows.numel() else torch.tensor(1.0)
        return Steps.placed(self, (rows / largest) * largest, spans, weights, problem)


@final
@dataclass(frozen=True)
class CapacityOfEvenLoad(Steps):
    """A slab is taken to hold twice the mean load; the rest comes out as zero."""

    name: ClassVar[str] = "F102_capacity_of_an_even_load"
    capabilities: ClassVar[Capabilities] = BATCHED

    @override
    def slabs(self, batch: BatchedBatch) -> list[Span]:
        spans = Steps.slabs(self, batch)
        most = 2 * -(-int(batch.counts.sum()) // max(1, len(batch.counts)))
        return [(expert, start, min(count, most)) for expert, start, count in spans]


MUTANTS: tuple[Mutant, ...] = (
    of_backend(PaddingSummed(), "undefined_rows", Honest()),
    of_backend(InactiveWeightTimesZero(), "undefined_rows", Honest()),
    of_backend(TokenWithoutSlotsUndefined(), "fresh_memory", Honest()),
    of_backend(AccumulatorNotZeroed(), "fresh_memory", Honest()),
    of_backend(InputReturnedForIdle(), "zero_tokens", Honest()),
    of_backend(ValidRowsInFewBlocks(), "token_order", Honest()),
    of_backend(CountTakenForLastRow(), "equals_reference", Honest()),
    of_backend(OffsetsIgnored(), "equals_reference", Honest()),
    of_backend(GapsSummed(), "undefined_rows", Honest()),
    of_backend(CountOneTooFew(), "equals_reference", Honest()),
    of_backend(EmptyGroupFails(), "equals_reference", Honest()),
    of_backend(GroupOfNextExpert(), "equals_reference", Honest()),
    of_backend(CapacityAsCount(), "undefined_rows", Honest()),
    of_backend(SearchPastTheLast(), "hot_expert", Honest()),
    of_backend(CountsOfExpertBefore(), "equals_reference", Honest()),
    of_backend(GapSetsScale(), "undefined_rows", Honest()),
    of_backend(CapacityOfEvenLoad(), "hot_expert", Honest()),
)
