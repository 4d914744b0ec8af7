"""MXFP4: E2M1 values, two in a byte, with a power of two for 32 neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.quant import e2m1
from moesaic.quant.base import Format, Quantized, StoredTensor
from moesaic.quant.granularity import PerGroup
from moesaic.quant.nibbles import pack, unpack
from moesaic.quant.scales import power_within
from moesaic.quant.values import matrix_values, packed_columns

_GROUP = PerGroup(32)


@final
@dataclass(frozen=True)
class MXFP4(Format):
    """`q * 2^(s - 127)`: q one of +-{0, .5, 1, 1.5, 2, 3, 4, 6}.

    Data uint8 `[..., N, K / 2]`, the first of two codes in the low bits (byte 0x21 is .5, then 1; the bytes of
    torch.float4_e2m1fn_x2); scale float8_e8m0fnu `[..., N, ceil(K / 32)]` of code s. An odd K is refused.

    Quantizing: the scale is `2^(floor(log2(largest)) - 2)`, so what exceeds 6 scales becomes 6; q is the nearest of
    `x / scale`, ties to the even code. Source: OCP Microscaling Formats v1.0, sections 5.3 and 6.3.
    """

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale",)

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {
            "data": StoredTensor(torch.uint8, packed_columns(shape, "MXFP4")),
            "scale": StoredTensor(torch.float8_e8m0fnu, _GROUP.grid(shape)),
        }

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return (*data.shape[:-1], 2 * data.shape[-1])

    @override
    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        return {"data": (1, 2), "scale": _GROUP.tile(rows, columns)}

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        work = matrix_values(values, name)
        packed_columns(tuple(values.shape), f"{name} cannot be packed: MXFP4")
        scale = power_within(_GROUP.largest(work), top_exponent=2)
        work = work / _GROUP.spread(scale.to(torch.float32), tuple(work.shape))
        return Quantized(self, pack(e2m1.encode(work)), {"scale": scale})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = _GROUP.spread(stored.scales["scale"].to(work), stored.shape)
        return (e2m1.decode(unpack(stored.data)).to(work) * scale).to(dtype)
