"""Wrong formats whose rounding is right: zeros, NaN, experts, memory, bytes and the name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.format_steps import INT8_FACTS, TILE, FormatSteps, HonestFormat, of_format
from moesaic.quant import Quantized


@final
@dataclass(frozen=True)
class NanToZero(FormatSteps):
    """A NaN or an infinity is stored as zero without a word."""

    @override
    def checked(self, values: Tensor, name: str) -> Tensor:
        work = values.detach().float()
        return work.where(work.isfinite(), 0.0)


@final
@dataclass(frozen=True)
class ZeroBlockIsNan(FormatSteps):
    """A block of zeros has the scale 0, and 0 / 0 is stored."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        return TILE.largest(work) / 127

    @override
    def product(self, codes: Tensor, scale: Tensor) -> Tensor:
        return codes * torch.where(scale > 0, scale, math.nan)


@final
@dataclass(frozen=True)
class ScaleOfExpertZero(FormatSteps):
    """Every expert of a stack is stored with the scales of the first that fit, those of expert 0."""

    @override
    def scale(self, work: Tensor) -> Tensor:
        scale = HonestFormat().scale(work)
        return scale[:1].expand_as(scale).contiguous() if scale.ndim == 4 else scale


@final
@dataclass(frozen=True)
class ReadInBfloat16(FormatSteps):
    """Scales are rounded to bfloat16 where bfloat16 values are asked for: a second rounding."""

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        if dtype not in (torch.bfloat16, torch.float16):
            return super().dequantize(stored, dtype)
        return stored.data.to(dtype) * self.read_spread(stored.scales["scale"], stored.shape).to(dtype)


@final
@dataclass(frozen=True)
class NanSetsTheScale(FormatSteps):
    """Rounded rows lose the scale of a block in which a value is not finite."""

    @override
    def round_trip(self, values: Tensor) -> Tensor:
        rounded = super().round_trip(values)
        return rounded if bool(values.isfinite().all()) else values


@final
@dataclass(frozen=True)
class StoresInPlace(FormatSteps):
    """A transposed view is rounded to bfloat16 where it stands."""

    @override
    def checked(self, values: Tensor, name: str) -> Tensor:
        if values.mT.is_contiguous() and not values.is_contiguous():
            values.copy_(values.bfloat16())
        return HonestFormat().checked(values, name)


@final
@dataclass(frozen=True)
class ScalesNotCounted(FormatSteps):
    """The bytes of the scales are not counted."""

    @override
    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return self.storage(shape, dtype)["data"].num_bytes


@final
@dataclass(frozen=True)
class NamedByAWord(FormatSteps):
    """The repr is a name that nothing reads back."""

    @override
    def __repr__(self) -> str:
        return "int8-block16"


HONEST = HonestFormat()

WRONG_CONTRACTS: tuple[Mutant, ...] = (
    of_format("F19_nan_sets_the_scale", NanSetsTheScale(), "round_trip", HONEST, **INT8_FACTS),
    of_format("F27_format_stores_in_place", StoresInPlace(), "values_unchanged", HONEST, **INT8_FACTS),
    of_format("F37_format_rounds_twice", ReadInBfloat16(), "one_rounding", HONEST, **INT8_FACTS),
    of_format("F46_scale_of_expert_0", ScaleOfExpertZero(), "experts", HONEST, **INT8_FACTS),
    of_format("F30_scales_not_counted", ScalesNotCounted(), "forms", HONEST, **INT8_FACTS),
    of_format("F50_nan_to_zero", NanToZero(), "non_finite", HONEST, **INT8_FACTS),
    of_format("F50_zero_block_is_nan", ZeroBlockIsNan(), "zeros", HONEST, **INT8_FACTS),
    of_format("F75_named_by_a_word", NamedByAWord(), "one_value", HONEST, **INT8_FACTS),
)
