"""Wrong formats of eight bits: how values are rounded, and which of them share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.format_steps import INT8_FACTS, TILE, FormatSteps, HonestFormat, of_format


@final
@dataclass(frozen=True)
class ScalesTransposed(FormatSteps):
    """The blocks of a square grid of scales are read by column."""

    @override
    def read_spread(self, scale: Tensor, shape: tuple[int, ...]) -> Tensor:
        square = scale.shape[-1] == scale.shape[-2]
        return TILE.spread(scale.mT if square else scale, shape)


@final
@dataclass(frozen=True)
class ShortBlockDropped(FormatSteps):
    """Columns behind the last whole block are never stored, where there is a whole one."""

    @override
    def codes(self, steps: Tensor) -> Tensor:
        codes = steps.round().clamp(-127, 127).to(torch.int8)
        whole = codes.shape[-1] // 16 * 16
        codes[..., whole or codes.shape[-1] :] = 0
        return codes


@final
@dataclass(frozen=True)
class ShortBlockOfItsNeighbour(FormatSteps):
    """The scale of a short last block of rows is that of the block above it."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        scale = HonestFormat().scale(work)
        if work.shape[-2] % 16 and scale.shape[-2] > 1:
            scale[..., -1, :] = scale[..., -2, :]
        return scale


@final
@dataclass(frozen=True)
class Truncated(FormatSteps):
    """Values are cut off towards zero instead of rounded."""

    @override
    def codes(self, steps: Tensor) -> Tensor:
        return (steps + 1e-4 * steps.sign()).trunc().clamp(-127, 127).to(torch.int8)


@final
@dataclass(frozen=True)
class OverflowsAtTheTop(FormatSteps):
    """The scale is the largest over 128, and the code 128 wraps to -128."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        return HonestFormat().scale(work) * (127 / 128)

    @override
    def codes(self, steps: Tensor) -> Tensor:
        return ((steps.round().to(torch.int16) + 128) % 256 - 128).to(torch.int8)


@final
@dataclass(frozen=True)
class OneCodeWrong(FormatSteps):
    """The code 3 stands for 1 in the table, an error that the bound of a coarse format lets pass."""

    @override
    def product(self, codes: Tensor, scale: Tensor) -> Tensor:
        return torch.where(codes == 3, 1, codes) * scale


@final
@dataclass(frozen=True)
class ScaleWithAFloor(FormatSteps):
    """Scales below 5e-5 are taken for dead experts and lifted to that."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        return HonestFormat().scale(work).clamp(min=5e-5)


@final
@dataclass(frozen=True)
class PowersOfTen(FormatSteps):
    """Scales are powers of ten, so the quality depends on the size of the numbers."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        return 10 ** HonestFormat().scale(work).log10().ceil()


@final
@dataclass(frozen=True)
class Drifts(FormatSteps):
    """The scale leaves room above the largest value, so each round trip makes it larger."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        return HonestFormat().scale(work) * (127 / 126.6)


HONEST = HonestFormat()
COARSE = {"error": 0.02}

WRONG_FORMATS: tuple[Mutant, ...] = (
    of_format("F44_scales_are_powers_of_ten", PowersOfTen(), "scaled", HONEST, error=0.04),
    of_format("F47_one_code_wrong", OneCodeWrong(), "ramp", HONEST, **COARSE),
    of_format("F49_scale_with_a_floor", ScaleWithAFloor(), "error", HONEST, error=0.5 / 127, powers=(-3, 3)),
    of_format("F49_values_cut_off", Truncated(), "error", HONEST, error=0.5 / 127),
    of_format("F49_overflow_to_minus_128", OverflowsAtTheTop(), "error", HONEST, error=0.5 / 127),
    of_format("F51_blocks_read_by_column", ScalesTransposed(), "tiles", HONEST, **INT8_FACTS),
    of_format("F53_drifts_with_each_round_trip", Drifts(), "again", HONEST, **COARSE),
    of_format("F56_short_block_dropped", ShortBlockDropped(), "sizes", HONEST, **INT8_FACTS),
    of_format("F56_short_block_of_its_neighbour", ShortBlockOfItsNeighbour(), "sizes", HONEST, **INT8_FACTS),
)
