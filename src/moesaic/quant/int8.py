"""INT8: whole numbers from -127 to 127 with a scale for each tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checks import instance
from moesaic.errors import FormatError
from moesaic.quant.base import Format, Quantized, StoredTensor
from moesaic.quant.granularity import Granularity
from moesaic.quant.scales import FLOAT_SCALES, float_scale
from moesaic.quant.values import matrix_values


@final
@dataclass(frozen=True)
class INT8(Format):
    """`q * scale`: q int8 `[..., N, K]`, scale in the shape of `granularity.grid`.

    `scale` is the dtype of the scales: float32, bfloat16 or float16. Quantizing: scale is the largest magnitude of
    the tile over 127, q the nearest whole number of `x / scale` in float32, ties to even, so -128 is read but never
    written. Source: SmoothQuant, arXiv:2211.10438; vLLM's dynamic int8 kernels.
    """

    granularity: Granularity
    scale: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        instance("INT8", "granularity", self.granularity, Granularity, FormatError, example="PerRow()")
        if self.scale not in FLOAT_SCALES:
            raise FormatError(
                f"INT8.scale is {self.scale!r}, but it needs torch.float32, torch.bfloat16 or torch.float16"
            )

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale",)

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {
            "data": StoredTensor(torch.int8, shape),
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
        scale = float_scale(self.granularity.largest(work), 127, self.scale, name)
        work = work / self.granularity.spread(scale.to(torch.float32), tuple(work.shape))
        return Quantized(self, work.round().clamp(-127, 127).to(torch.int8), {"scale": scale})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = self.granularity.spread(stored.scales["scale"].to(work), stored.shape)
        return (stored.data.to(work) * scale).to(dtype)
