"""Plain: values stored as they are, in the layer's own dtype (float32, float16, bfloat16; float64 in tests)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.quant.base import Format, Quantized, StoredTensor


@final
@dataclass(frozen=True)
class Plain(Format):
    """Not quantized: stored in the dtype of the layer, which `Problem.dtype` states in one place only."""

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ()

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {"data": StoredTensor(dtype, shape)}

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return tuple(data.shape)

    @override
    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        return {"data": (1, 1)}

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        return Quantized(self, values)

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        return stored.data.to(dtype)

    @override
    def round_trip(self, values: Tensor) -> Tensor:
        return values
