"""INT4: codes from 0 to 15, two in a byte, with a scale and perhaps a zero point for each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checks import flag
from moesaic.errors import FormatError
from moesaic.quant.base import Format, Quantized, StoredTensor
from moesaic.quant.granularity import PerGroup, PerRow
from moesaic.quant.nibbles import pack, unpack
from moesaic.quant.scales import FLOAT_SCALES, float_scale
from moesaic.quant.values import matrix_values, packed_columns


@final
@dataclass(frozen=True)
class INT4(Format):
    """`(q - 8) * scale`, or `(q - zero_point) * scale`: q from 0 to 15.

    Data uint8 `[..., N, K / 2]`, the first of two codes in the low bits: on a little-endian machine the bytes of
    compressed-tensors' int32 words. Scale `[..., N, ceil(K / g)]` in the dtype `scale` (float32, bfloat16 or
    float16); zero_point uint8 of that shape, 0 to 15, one in a byte. An odd K is refused.

    Quantizing, ties to even: without zero point scale is the largest magnitude over 7.5 and q within 0 to 15, as
    compressed-tensors does, so no error is above half a step. With one, scale is the span of the group, zero
    included, over 15, and zero_point the nearest of `-lowest / scale`.
    Source: GPTQ, arXiv:2210.17323; AWQ, arXiv:2306.00978.
    """

    granularity: PerGroup | PerRow
    zero_point: bool = False
    scale: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not isinstance(self.granularity, PerGroup | PerRow):
            raise FormatError(
                f"INT4.granularity is {self.granularity!r}, but it needs a PerGroup or PerRow: PerGroup(128)"
            )
        flag("INT4", "zero_point", self.zero_point, FormatError)
        if self.scale not in FLOAT_SCALES:
            raise FormatError(
                f"INT4.scale is {self.scale!r}, but it needs torch.float32, torch.bfloat16 or torch.float16"
            )

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale", "zero_point") if self.zero_point else ("scale",)

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        grid = self.granularity.grid(shape)
        stored = {
            "data": StoredTensor(torch.uint8, packed_columns(shape, "INT4")),
            "scale": StoredTensor(self.scale, grid),
        }
        return {**stored, "zero_point": StoredTensor(torch.uint8, grid)} if self.zero_point else stored

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return (*data.shape[:-1], 2 * data.shape[-1])

    @override
    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        tile = self.granularity.tile(rows, columns)
        return {"data": (1, 2), **dict.fromkeys(self.scale_names, tile)}

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        shape = tuple(values.shape)
        work = matrix_values(values, name)
        packed_columns(shape, f"{name} cannot be packed: INT4")
        if not self.zero_point:
            scale = float_scale(self.granularity.largest(work), 7.5, self.scale, name)
            steps = (work / self.granularity.spread(scale.to(torch.float32), shape)).round()
            return Quantized(self, pack((steps + 8).clamp(0, 15).to(torch.uint8)), {"scale": scale})
        low, high = self.granularity.extremes(work)
        scale = float_scale(high - low, 15, self.scale, name)
        zero = (-low / scale.to(torch.float32)).round().clamp(0, 15)
        steps = (work / self.granularity.spread(scale.to(torch.float32), shape)).round()
        codes = (steps + self.granularity.spread(zero, shape)).clamp(0, 15).to(torch.uint8)
        return Quantized(self, pack(codes), {"scale": scale, "zero_point": zero.to(torch.uint8)})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = self.granularity.spread(stored.scales["scale"].to(work), stored.shape)
        zero: Tensor | int = 8
        if self.zero_point:
            zero = self.granularity.spread(stored.scales["zero_point"].to(work), stored.shape)
        return ((unpack(stored.data).to(work) - zero) * scale).to(dtype)
