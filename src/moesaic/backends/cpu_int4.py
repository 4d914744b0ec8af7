"""One expert's INT4 projection on a CPU: torch's `_weight_int4pack_mm_for_cpu` for few rows, read back for more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.backends.cpu_dequantized import StoredProjection, is_vectorized
from moesaic.quant import INT4, PerGroup, Quantized
from moesaic.quant.nibbles import pack, unpack

FEW_ROWS = 96
"""Rows up to which the kernel wins: a million weights take it 24 us a row, oneDNN 10 and 1200 to read them back
(one Zen 4 core, exploratory)."""

GROUPS: tuple[int, ...] = (32, 64, 128, 256)
"""The groups of columns that the kernel knows."""

BLOCKS: tuple[int, ...] = (64, 32)
"""Rows of a block, as the kernel packs them with AVX512 and with AVX2."""


@final
@dataclass(frozen=True, eq=False)
class Int4Projection(StoredProjection):
    """Codes packed for the kernel, in blocks of `block` rows, and `[K / g, N, 2]` scales and offsets in bfloat16.

    The kernel reads `(q - 8) * scale + offset`; the offset of a zero point is `(8 - zero_point) * scale`. Both are
    rounded to bfloat16; scales that are stored so are exact. The `scales` stay beside them as they came.
    """

    format: INT4
    packed: Tensor
    block: int
    factors: Tensor
    scales: Mapping[str, Tensor]
    parts: int

    @classmethod
    def of(cls, weight: Quantized, dtype: torch.dtype) -> Int4Projection | None:
        """`weight` packed; None if torch has no kernel for it, with rows in `dtype`, on this processor."""
        stored, (rows, columns) = weight.format, weight.shape
        if not isinstance(stored, INT4) or not isinstance(stored.granularity, PerGroup) or dtype != torch.bfloat16:
            return None
        group = stored.granularity.columns
        if group not in GROUPS or columns % group or rows % 16 or not is_vectorized():
            return None
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack(weight.data).to(torch.int32), 1)  # noqa: SLF001
        # torch promises no layout, so what is read back from each that is known is compared with what went in.
        blocks = [b for b in BLOCKS if rows % b == 0 and torch.equal(_read_back(packed, b), weight.data)]
        if not blocks:
            return None
        return cls(stored, packed, blocks[0], _factors(weight), weight.scales, weight.parts)

    @override
    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] > FEW_ROWS:
            return functional.linear(rows, self.stored().dequantize(rows.dtype))
        group = rows.shape[1] // self.factors.shape[0]
        product = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001
        return product(rows.contiguous(), self.packed, group, self.factors)

    @override
    def stored(self) -> Quantized:
        return Quantized(self.format, _read_back(self.packed, self.block), self.scales, self.parts)

    @property
    @override
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.packed, self.factors, *self.scales.values())


def _read_back(packed: Tensor, block: int) -> Tensor:
    """The canonical bytes `[N, K / 2]` of codes packed in blocks of rows.

    A block is `[K, block / 2]`: byte (k, i) holds row i in its low bits and row i + block / 2 in its high bits.
    """
    rows, half = packed.shape
    blocks = packed.reshape(rows // block, 2 * half, block // 2)
    codes = torch.cat((blocks & 15, blocks >> 4), dim=-1)
    return pack(codes.transpose(1, 2).reshape(rows, 2 * half))


def _factors(weight: Quantized) -> Tensor:
    scale = weight.scales["scale"].to(torch.float32)
    offset = torch.zeros_like(scale)
    if "zero_point" in weight.scales:
        offset = (8 - weight.scales["zero_point"].to(torch.float32)) * scale
    return torch.stack((scale, offset), dim=-1).transpose(0, 1).to(torch.bfloat16).contiguous()
