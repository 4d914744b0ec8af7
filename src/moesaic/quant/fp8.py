"""FP8: E4M3 values with a scale for each tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checks import instance
from moesaic.errors import FormatError
from moesaic.quant import e4m3
from moesaic.quant.base import Format, Quantized, StoredTensor
from moesaic.quant.granularity import Granularity
from moesaic.quant.scales import FLOAT_SCALES, float_scale, power_above
from moesaic.quant.values import matrix_values


@final
@dataclass(frozen=True)
class FP8(Format):
    """`q * scale`: q float8_e4m3fn `[..., N, K]`, scale in the shape of `granularity.grid`.

    `scale` is the dtype of the scales: float32, bfloat16 or float16, or float8_e8m0fnu (ue8m0, powers of two).
    Quantizing: scale is the largest magnitude of the tile over 448, for ue8m0 rounded up to a power of two; q is the
    nearest of `x / scale` in float32, ties to even. `FP8(PerBlock())` is `weight` and `weight_scale_inv` of
    DeepSeek-V3, which multiplies in spite of its name.
    Source: Micikevicius et al. 2022, arXiv:2209.05433; DeepSeek-V3, arXiv:2412.19437.
    """

    granularity: Granularity
    scale: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        instance("FP8", "granularity", self.granularity, Granularity, FormatError, example="PerRow()")
        if self.scale not in (*FLOAT_SCALES, torch.float8_e8m0fnu):
            raise FormatError(
                f"FP8.scale is {self.scale!r}, but it needs torch.float32, torch.bfloat16, torch.float16 or "
                "torch.float8_e8m0fnu"
            )

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale",)

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {
            "data": StoredTensor(torch.float8_e4m3fn, shape),
            "scale": StoredTensor(self.scale, self.granularity.grid(shape)),
        }

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return tuple(data.shape)

    @override
    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        return {"data": (1, 1), "scale": self.granularity.tile(rows, columns)}

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        work = matrix_values(values, name)
        largest = self.granularity.largest(work)
        if self.scale == torch.float8_e8m0fnu:
            scale = power_above(largest, e4m3.LARGEST)
        else:
            scale = float_scale(largest, e4m3.LARGEST, self.scale, name)
        work = work / self.granularity.spread(scale.to(torch.float32), tuple(work.shape))
        return Quantized(self, e4m3.encode(work), {"scale": scale})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = self.granularity.spread(stored.scales["scale"].to(work), stored.shape)
        return (stored.data.to(work) * scale).to(dtype)
