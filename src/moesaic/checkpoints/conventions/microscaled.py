"""MicroscaledWeight: MXFP8 and MXFP4 with their codes of powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.matrix import E8M0, StoredMatrix
from moesaic.quant import MXFP4, MXFP8, Quantized

PAIRS: tuple[torch.dtype, ...] = (torch.uint8, torch.int8, torch.float4_e2m1fn_x2)
"""The dtypes under which files keep two E2M1 codes in a byte."""


@final
@dataclass(frozen=True)
class MicroscaledWeight(Convention):
    """`data` of float8_e4m3fn `[N, K]` or of bytes `[N, K / 2]`, low bits first, and `scale` `[N, ceil(K / 32)]`.

    `stored_as` and `scale_as` are the dtypes written; any that means the same is read. compressed-tensors (mxfp8,
    mxfp4) and ModelOpt: bytes for scales; DeepSeek-V4: int8 pairs and float8_e8m0fnu scales.
    """

    of: MXFP8 | MXFP4
    data: str = "weight"
    scale: tuple[str, ...] = ("weight_scale",)
    stored_as: torch.dtype = torch.uint8
    scale_as: torch.dtype = torch.uint8

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return (self.data, *self.scale)

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        if isinstance(self.of, MXFP8):
            data = matrix.weight(self.data, torch.float8_e4m3fn)
        else:
            data = matrix.weight(self.data, *PAIRS).view(torch.uint8)
        grid = self.of.storage(self.of.logical_shape(data), data.dtype)["scale"].shape
        return Quantized(self.of, data, {"scale": matrix.scale(matrix.one_of(self.scale), E8M0, grid)})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        if stored.format != self.of:
            raise self.refuse(stored.format, repr(self.of))
        data = stored.data if isinstance(self.of, MXFP8) else stored.data.view(self.stored_as)
        return {self.data: data, self.scale[0]: stored.scales["scale"].view(self.scale_as)}
