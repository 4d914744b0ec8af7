"""Mutants of tiles: what does not fill one is lost, and what fills one is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

TILE = 16
"""Rows and columns of a tile."""


@final
@dataclass(frozen=True)
class HiddenTailOfSum(Steps):
    """The sum over H ends at the last whole tile."""

    name: ClassVar[str] = "F24_tail_of_the_sum_over_h_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        whole = rows.shape[1] // TILE * TILE
        return self.product(rows[:, :whole], weights.gate_up.data[expert][:, :whole])


@final
@dataclass(frozen=True)
class HiddenTailOfOutput(Steps):
    """The last columns of the output stay zero where H is no multiple of a tile."""

    name: ClassVar[str] = "F24_last_columns_of_h_not_written"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        second = Steps.down(self, rows, expert, weights).clone()
        second[:, second.shape[1] // TILE * TILE :] = 0
        return second


@final
@dataclass(frozen=True)
class InnerTailLost(Steps):
    """The sum over I ends at the last whole tile."""

    name: ClassVar[str] = "F59_tail_of_the_sum_over_i_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        whole = rows.shape[1] // TILE * TILE
        return self.product(rows[:, :whole], weights.down.data[expert][:, :whole])


@final
@dataclass(frozen=True)
class LastRowOfTileLost(Steps):
    """The last row of a tile that is full is left out."""

    name: ClassVar[str] = "F20_last_row_of_a_full_tile_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down_bias(self, second: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        second = Steps.down_bias(self, second, expert, weights).clone()
        second[TILE - 1 :: TILE] = 0
        return second


@final
@dataclass(frozen=True)
class RowsPastOneTileLost(Steps):
    """An expert computes one tile of rows; those past it come out as zero."""

    name: ClassVar[str] = "F21_rows_past_the_capacity_lost"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down_bias(self, second: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        second = Steps.down_bias(self, second, expert, weights).clone()
        second[2 * TILE :] = 0
        return second


@final
@dataclass(frozen=True)
class LongSumsCut(Steps):
    """A tuned tile for large layers sums over the first 1024 columns only."""

    name: ClassVar[str] = "F114_sum_over_large_h_cut"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        return self.product(rows[:, :1024], weights.gate_up.data[expert][:, :1024])


@final
@dataclass(frozen=True)
class ShortOffsets(Steps):
    """Row offsets wrap at 2**13 elements, as 32-bit ones do at 2**31."""

    name: ClassVar[str] = "F100_row_offsets_wrap"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        width = rows.shape[1]
        return Steps.gather(self, rows, (place * width) % 2**13 // width)


@final
@dataclass(frozen=True)
class OneTokenPath(Steps):
    """The path for one token ends at its first inactive slot."""

    name: ClassVar[str] = "F15_path_for_one_token_ends_too_early"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        active = ((ids >= 0) & (ids < problem.num_experts)).int().cumprod(1).bool()
        return torch.where(active, ids, -1) if len(ids) == 1 else ids


@final
@dataclass(frozen=True)
class ZeroTokens(Steps):
    """No token gives an empty tile, which divides by zero."""

    name: ClassVar[str] = "F25_no_token_divides_by_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def zeros(self, rows: Tensor) -> Tensor:
        per_tile = TILE // len(rows[:TILE])
        return Steps.zeros(self, rows) * (per_tile > 0)


@final
@dataclass(frozen=True)
class ZeroTokensWidth(Steps):
    """No token gives an output of no columns."""

    name: ClassVar[str] = "F25_no_token_gives_no_columns"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return total if len(total) else total[:, :0]


MUTANTS: tuple[Mutant, ...] = (
    of_backend(HiddenTailOfSum(), "equals_reference", Honest()),
    of_backend(HiddenTailOfOutput(), "equals_reference", Honest()),
    of_backend(InnerTailLost(), "equals_reference", Honest()),
    of_backend(LastRowOfTileLost(), "equals_reference", Honest()),
    of_backend(RowsPastOneTileLost(), "hot_expert", Honest()),
    of_backend(LongSumsCut(), "equals_reference", Honest()),
    of_backend(ShortOffsets(), "equals_reference", Honest()),
    of_backend(OneTokenPath(), "one_token", Honest()),
    of_backend(ZeroTokens(), "zero_tokens", Honest()),
    of_backend(ZeroTokensWidth(), "zero_tokens", Honest()),
)
