"""One expert's INT8 projection on a CPU: torch's `_weight_int8pack_mm` for few rows, read back for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.backends.cpu_dequantized import StoredProjection, is_vectorized
from moesaic.quant import INT8, PerRow, Quantized

FEW_ROWS = 16
"""Rows up to which the kernel wins: a million weights take it 27 us a row, oneDNN 10 and 290 to read them back
(one Zen 4 core, exploratory)."""

ROWS, COLUMNS = 4, 32
"""What the kernel steps in; it reads past the end of a weight that is no multiple (torch 2.13)."""

ALIGNMENT = 64
"""Bytes."""


@final
@dataclass(frozen=True, eq=False)
class Int8Projection(StoredProjection):
    """Codes as they came, and their scales `[N]` rounded to bfloat16 for the kernel: exact where they are stored so."""

    weight: Quantized
    scale: Tensor

    @classmethod
    def of(cls, weight: Quantized) -> Int8Projection:
        """`weight` is one that `takes`."""
        codes = Quantized(weight.format, _aligned(weight.data), weight.scales, weight.parts)
        return cls(codes, weight.scales["scale"].flatten().to(torch.bfloat16))

    @classmethod
    def takes(cls, weight: Quantized, dtype: torch.dtype) -> bool:
        """Whether torch has a kernel for `weight` with rows in `dtype` on this processor."""
        stored, (rows, columns) = weight.format, weight.shape
        suits = isinstance(stored, INT8) and stored.granularity == PerRow() and dtype == torch.bfloat16
        return suits and not (rows % ROWS or columns % COLUMNS) and is_vectorized()

    @override
    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] > FEW_ROWS:
            return functional.linear(rows, self.weight.dequantize(rows.dtype))
        return torch.ops.aten._weight_int8pack_mm(_aligned(rows), self.weight.data, self.scale)  # noqa: SLF001

    @override
    def stored(self) -> Quantized:
        return self.weight

    @property
    @override
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.weight.tensors, self.scale)


def _aligned(values: Tensor) -> Tensor:
    """`values`, copied unless dense and aligned as torch allocates: the kernel's loads fault on what is not."""
    if values.is_contiguous() and values.data_ptr() % ALIGNMENT == 0:
        return values
    return values.clone(memory_format=torch.contiguous_format)
