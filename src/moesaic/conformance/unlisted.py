"""An activation and a format that no declaration lists, to see that they are declined, or computed if all are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At, Constant, constant
from moesaic.quant import Format, Quantized, StoredTensor


@final
@dataclass(frozen=True)
class UnlistedActivation(Activation):
    """`tanh(slope * g) * u`: used by no model."""

    gated: ClassVar[bool] = True
    slope: Constant = constant(0.5)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return torch.tanh(at(self.slope) * gate) * up


@final
@dataclass(frozen=True)
class UnlistedFormat(Format):
    """Values stored as they are, under another name than Plain."""

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
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        return Quantized(self, values)

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        return stored.data.to(dtype)
