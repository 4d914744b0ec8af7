"""Wrong formats of four bits and of eight with an exponent: nibbles, zero points, exponents, the global scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.format_checks import StoredExample
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.format_steps import of_format
from moesaic.quant import FP8, INT4, MXFP4, MXFP8, NVFP4, Format, PerGroup, PerRow, Quantized, StoredTensor, e2m1, e4m3
from moesaic.quant.nibbles import pack
from moesaic.quant.values import matrix_values

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E4M3 = (448.0, 1.0, -0.5, 0.0, 14.0, 15.0, -416.0, 2.0**-6)
MXFP4_FACTS: dict[str, Any] = {"error": 0.25, "exact": E2M1}
NVFP4_FACTS: dict[str, Any] = {"error": 0.2, "exact": E2M1}
FP8_FACTS: dict[str, Any] = {"error": 0.0358, "exact": E4M3}
COARSE_FP8: dict[str, Any] = {"error": 0.11, "exact": E4M3}
LOW_NIBBLE_FIRST = StoredExample(
    torch.tensor([[0x21]], dtype=torch.uint8),
    {"scale": torch.tensor([[127]], dtype=torch.uint8).view(torch.float8_e8m0fnu)},
    ((0.5, 1.0),),
)
"""F47: the byte 0x21 is the codes 1 and 2."""


@dataclass(frozen=True)
class Around(Format):
    """A format of the package, under which each mutant changes what is stored or what is read."""

    inner: Format

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return self.inner.scale_names

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return self.inner.storage(shape, dtype)

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return self.inner.logical_shape(data)

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        stored = self.inner.quantize(values, name=name)
        return Quantized(self, *self.stored(stored.data, dict(stored.scales)))

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        return Quantized(self.inner, *self.read(stored.data, dict(stored.scales))).dequantize(dtype)

    def stored(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What is stored in place of the right numbers."""
        return data, scales

    def read(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What is read in place of the stored numbers."""
        return data, scales


@final
@dataclass(frozen=True)
class NibblesReadSwapped(Around):
    """The high four bits are read first."""

    @override
    def read(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return _swapped(data), scales


@final
@dataclass(frozen=True)
class NibblesSwappedBothWays(Around):
    """The high four bits are written and read first, which no round trip shows."""

    @override
    def stored(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return _swapped(data), scales

    @override
    def read(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return _swapped(data), scales


@final
@dataclass(frozen=True)
class ExponentOffByOne(Around):
    """The exponent is read with a bias of 126."""

    @override
    def read(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return data, {**scales, "scale": (scales["scale"].view(torch.uint8) + 1).view(torch.float8_e8m0fnu)}


@final
@dataclass(frozen=True)
class ZeroPointOffByOne(Around):
    """The zero point is read as one less, as GPTQ stores it."""

    @override
    def read(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return data, {**scales, "zero_point": (scales["zero_point"].int() - 1).clamp(min=0).to(torch.uint8)}


@final
@dataclass(frozen=True)
class ReciprocalGlobalScale(Around):
    """The global scale is read as its reciprocal."""

    @override
    def read(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return data, {**scales, "global_scale": 1 / scales["global_scale"]}


@final
@dataclass(frozen=True)
class GlobalScaleOfOne(Around):
    """The global scale is fixed, at what suits numbers of size 1."""

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        work = matrix_values(values, name)
        largest = PerGroup(16).largest(work)
        scale = e4m3.encode(256 * largest / e2m1.LARGEST).float().clamp(min=e4m3.SMALLEST)
        codes = e2m1.encode(work / PerGroup(16).spread(scale / 256, tuple(work.shape)))
        fixed = torch.full((*values.shape[:-2], 1, 1), 1 / 256)
        return Quantized(self, pack(codes), {"scale": scale.to(torch.float8_e4m3fn), "global_scale": fixed})


@final
@dataclass(frozen=True)
class NanAboveTheTop(Around):
    """What the cast of a format without infinity makes of numbers above its top."""

    @override
    def stored(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        code = data.view(torch.uint8)
        return torch.where((code & 127) == 126, code | 127, code).view(torch.float8_e4m3fn), scales


@final
@dataclass(frozen=True)
class TwoBitsOfMantissa(Around):
    """E5M2 in place of E4M3: a bit of every value is lost."""

    @override
    def stored(self, data: Tensor, scales: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return data.float().to(torch.float8_e5m2).float().to(torch.float8_e4m3fn), scales


def _swapped(data: Tensor) -> Tensor:
    return data << 4 | data >> 4


PER_32 = INT4(PerGroup(32), zero_point=True)
INT4_FACTS: dict[str, Any] = {"error": 1 / 15, "idempotent": False}

WRONG_SMALL_FORMATS: tuple[Mutant, ...] = (
    of_format("F44_global_scale_fixed", GlobalScaleOfOne(NVFP4()), "scaled", NVFP4(), **NVFP4_FACTS),
    of_format("F45_reciprocal_global_scale", ReciprocalGlobalScale(NVFP4()), "error", NVFP4(), **NVFP4_FACTS),
    of_format("F47_nibbles_read_swapped", NibblesReadSwapped(MXFP4()), "error", MXFP4(), **MXFP4_FACTS),
    of_format(
        "F47_nibbles_swapped_both_ways",
        NibblesSwappedBothWays(MXFP4()),
        "examples",
        MXFP4(),
        **MXFP4_FACTS,
        examples=(LOW_NIBBLE_FIRST,),
    ),
    of_format("F47_zero_point_off_by_one", ZeroPointOffByOne(PER_32), "error", PER_32, **INT4_FACTS),
    of_format("F49_exponent_off_by_one", ExponentOffByOne(MXFP8()), "error", MXFP8(), error=2**-4, exact=E4M3),
    of_format("F49_two_bits_of_mantissa", TwoBitsOfMantissa(FP8(PerRow())), "exact", FP8(PerRow()), **COARSE_FP8),
    of_format("F49_nan_above_the_top", NanAboveTheTop(FP8(PerRow())), "error", FP8(PerRow()), **FP8_FACTS),
)
