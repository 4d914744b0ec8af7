"""Mutants of what is whole or many: columns that fill their tiles, aligned groups, many experts and slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import ReLU2
from moesaic.backends.capabilities import Capabilities
from moesaic.batches import BatchedBatch, GroupedBatch, TokenBatch
from moesaic.conformance.cases import base_case
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import ROUNDED, Honest, HonestRounded, HonestWide, of_backend
from moesaic.conformance.mutants.judge_backend import BackendJudge
from moesaic.conformance.mutants.numbers import NARROW
from moesaic.conformance.mutants.places import BATCHED, GROUPED
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Span, Steps
from moesaic.layouts import BatchedExperts
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

COPIES = replace(
    base_case(ROUNDED, torch.bfloat16)
    .changed(top_k=8, activation=ReLU2(), hidden_size=72, intermediate_size=40)
    .in_layout(BatchedExperts()),
    num_tokens=2,
    padding=0.0,
    seed=1,
)
"""Two tokens that come to one expert eight times each: as equal rows, whose rounding their number does not average."""


@final
@dataclass(frozen=True)
class TileOfHiddenLost(Steps):
    """Where H is a multiple of 128, the sum over it runs without masks, and ends a tile early."""

    name: ClassVar[str] = "F24_last_tile_of_h_lost_where_all_are_whole"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        end = rows.shape[1] - 16 * (rows.shape[1] % 128 == 0)
        return self.product(rows[:, :end], weights.gate_up.data[expert][:, :end])


@final
@dataclass(frozen=True)
class TileOfInnerLost(Steps):
    """Where I is a multiple of 16, slabs of bfloat16 leave out the last tile of the sum over it."""

    name: ClassVar[str] = "F59_last_tile_of_i_lost_in_slabs_of_bfloat16"
    capabilities: ClassVar[Capabilities] = replace(BATCHED, dtypes=(torch.bfloat16, torch.float32))

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        whole = rows.shape[1] % 16 == 0 and weights.down.data.dtype == torch.bfloat16
        end = rows.shape[1] - 16 * whole
        return self.product(rows[:, :end], weights.down.data[expert][:, :end])


@final
@dataclass(frozen=True)
class GroupsPast32Lost(Steps):
    """The search for the group of a row has one lane for each expert, and 32 lanes."""

    name: ClassVar[str] = "F42_groups_past_the_32nd_lost"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        return [span for span in Steps.groups(self, batch) if span[0] < 32]


@final
@dataclass(frozen=True)
class SlabsPast64Lost(Steps):
    """Slabs are served by a grid of at most 64."""

    name: ClassVar[str] = "F42_slabs_past_the_64th_lost"
    capabilities: ClassVar[Capabilities] = replace(BATCHED, max_experts=1024)

    @override
    def slabs(self, batch: BatchedBatch) -> list[Span]:
        return [span for span in Steps.slabs(self, batch) if span[0] < 64]


@final
@dataclass(frozen=True)
class GroupsOf64InTilesOf128(Steps):
    """Groups that are aligned to 64 rows are read from the tile of 128 in which they begin."""

    name: ClassVar[str] = "F20_groups_of_64_read_in_tiles_of_128"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        tile = 128 if batch.alignment == 64 else 1
        return [(expert, start // tile * tile, count) for expert, start, count in Steps.groups(self, batch)]


@final
@dataclass(frozen=True)
class GroupsOf128InPairs(Steps):
    """Groups that are aligned to 128 rows are taken two tiles at a time, from an even one on."""

    name: ClassVar[str] = "F20_groups_of_128_read_in_pairs_of_tiles"
    capabilities: ClassVar[Capabilities] = GROUPED

    @override
    def groups(self, batch: GroupedBatch) -> list[Span]:
        tile = 256 if batch.alignment == 128 else 1
        return [(expert, start // tile * tile, count) for expert, start, count in Steps.groups(self, batch)]


@final
@dataclass(frozen=True)
class ExpertsPast1024Lost(Steps):
    """Any number of experts is declared, and a block of 1024 threads counts them."""

    name: ClassVar[str] = "F42_experts_past_the_1024th_lost"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, max_experts=2**31 - 1)

    @override
    def order(self, problem: Problem) -> range:
        return range(min(problem.num_experts, 1024))


@final
@dataclass(frozen=True)
class SlotsPast32Lost(Steps):
    """Any number of slots is declared, and a warp of 32 lanes adds them."""

    name: ClassVar[str] = "F42_slots_past_the_32nd_lost"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, max_top_k=2**31 - 1)

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        return torch.where(torch.arange(ids.shape[1], device=ids.device) < 32, ids, -1)


@final
@dataclass(frozen=True)
class PassesRounded(Steps):
    """Slots are added in passes of eight, and the sum is stored in the dtype of the rows between them."""

    name: ClassVar[str] = "F37_sum_rounded_between_passes_of_eight_slots"
    capabilities: ClassVar[Capabilities] = replace(NARROW, max_top_k=64)

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        total = torch.zeros_like(batch.hidden_states, dtype=torch.float32)
        for start in range(0, batch.routing.topk_ids.shape[1], 8):
            eight = slice(start, start + 8)
            routing = replace(
                batch.routing,
                topk_ids=batch.routing.topk_ids[:, eight],
                topk_weights=batch.routing.topk_weights[:, eight],
            )
            part = Steps.tokens(self, replace(batch, routing=routing), weights, problem)
            total = (total + part.float()).to(problem.dtype).float()
        return total.to(problem.dtype)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(TileOfHiddenLost(), "equals_reference", Honest()),
    of_backend(TileOfInnerLost(), "equals_reference", HonestRounded(), BackendJudge(more=(COPIES,))),
    of_backend(GroupsPast32Lost(), "equals_reference", Honest()),
    of_backend(SlabsPast64Lost(), "equals_reference", Honest()),
    of_backend(GroupsOf64InTilesOf128(), "equals_reference", Honest()),
    of_backend(GroupsOf128InPairs(), "equals_reference", Honest()),
    of_backend(ExpertsPast1024Lost(), "equals_reference", Honest()),
    of_backend(SlotsPast32Lost(), "equals_reference", Honest()),
    of_backend(PassesRounded(), "float32_sum", HonestWide()),
)
