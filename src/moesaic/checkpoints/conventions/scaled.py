"""ScaledWeight: values of 8 bits and their scales, each a tensor as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.quant import FP8, INT8, PerRow, PerTensor, Quantized

FLOATS: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes in which files keep scales that are not powers of two."""


@final
@dataclass(frozen=True)
class ScaledWeight(Convention):
    """`weight` `[N, K]` of float8_e4m3fn or int8, and `scale`, which multiplies, in the shape of the granularity.

    `of`: format and granularity; the dtype of scales is the file's. `scale`: what the tensor is called, the first name
    when written. One scale for a matrix is `[]` or `[1]` in files (`scalar` when written), one for a row may be `[N]`.
    DeepSeek-V3's `weight_scale_inv`, compressed-tensors and ModelOpt FP8, compressed-tensors int-quantized.
    """

    of: FP8 | INT8
    scale: tuple[str, ...] = ("weight_scale",)
    scalar: tuple[int, ...] = (1,)

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("weight", *self.scale)

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        fp8 = isinstance(self.of, FP8)
        data = matrix.weight("weight", torch.float8_e4m3fn if fp8 else torch.int8)
        grid = self.of.granularity.grid(tuple(data.shape))
        flat = ((), (1,)) if self.of.granularity == PerTensor() else ()
        flat = (tuple(data.shape[:1]),) if self.of.granularity == PerRow() else flat
        dtypes = (*FLOATS, torch.float8_e8m0fnu) if fp8 else FLOATS
        scale = matrix.scale(matrix.one_of(self.scale), dtypes, grid, *flat)
        return Quantized(replace(self.of, scale=scale.dtype), data, {"scale": scale})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        kind, rule = stored.format, self.of
        if not isinstance(kind, FP8 | INT8) or replace(rule, scale=kind.scale) != kind:
            raise self.refuse(kind, f"{rule!r} with scales of any dtype")
        scale = stored.scales["scale"]
        if rule.granularity == PerTensor():
            scale = scale.reshape(self.scalar)
        return {"weight": stored.data, self.scale[0]: scale}
