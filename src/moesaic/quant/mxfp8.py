"""MXFP8: E4M3 values with a power of two for 32 neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.quant import e4m3
from moesaic.quant.base import Format, Quantized, StoredTensor
from moesaic.quant.granularity import PerGroup
from moesaic.quant.scales import power_above
from moesaic.quant.values import matrix_values

_GROUP = PerGroup(32)


@final
@dataclass(frozen=True)
class MXFP8(Format):
    """`q * 2^(s - 127)`: q float8_e4m3fn `[..., N, K]`, scale float8_e8m0fnu `[..., N, ceil(K / 32)]` of code s.

    Quantizing: the scale is the least power of two with which nothing exceeds 448, as NVIDIA's recipe has it
    (arXiv:2506.08027; the rule of the OCP text, rounding down, saturates at the top and errs 10 % more); q is the
    nearest of `x / scale`, ties to even. Source: OCP Microscaling Formats v1.0.
    """

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale",)

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {
            "data": StoredTensor(torch.float8_e4m3fn, shape),
            "scale": StoredTensor(torch.float8_e8m0fnu, _GROUP.grid(shape)),
        }

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return tuple(data.shape)

    @override
    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        return {"data": (1, 1), "scale": _GROUP.tile(rows, columns)}

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        work = matrix_values(values, name)
        scale = power_above(_GROUP.largest(work), e4m3.LARGEST)
        work = work / _GROUP.spread(scale.to(torch.float32), tuple(work.shape))
        return Quantized(self, e4m3.encode(work), {"scale": scale})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = _GROUP.spread(stored.scales["scale"].to(work), stored.shape)
        return (stored.data.to(work) * scale).to(dtype)
