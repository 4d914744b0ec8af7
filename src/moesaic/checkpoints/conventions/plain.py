"""PlainWeight: `weight` as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.quant import Plain, Quantized

PLAIN_DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""The dtypes of weights that are not quantized."""


@final
@dataclass(frozen=True)
class PlainWeight(Convention):
    """`weight` `[N, K]` in bfloat16, float16 or float32."""

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("weight",)

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        return Quantized(Plain(), matrix.weight("weight", *PLAIN_DTYPES))

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        if not isinstance(stored.format, Plain):
            raise self.refuse(stored.format, "Plain()")
        return {"weight": stored.data}
