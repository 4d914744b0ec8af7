"""An activation, a format and schemes that no declaration lists: they are declined, or computed if all are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At, Constant, constant
from moesaic.backends.capabilities import Capabilities
from moesaic.quant import FP8, INT4, INT8, Format, Quantized, Scheme, StoredTensor
from moesaic.quant.scales import FLOAT_SCALES


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


def unlisted_schemes(can: Capabilities) -> Iterator[Scheme]:
    """A scheme of a listed format with scales in a dtype that no listed one has; none if all are listed."""
    for scheme in can.schemes:
        weights = scheme.weights
        for dtype in FLOAT_SCALES if isinstance(weights, FP8 | INT8 | INT4) else ():
            found = replace(scheme, weights=replace(weights, scale=dtype))
            if found not in can.schemes:
                yield found
                return
