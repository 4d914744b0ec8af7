"""NVFP4Weight: E2M1 pairs, E4M3 scales and a scale for the matrix that multiplies or divides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.conventions.microscaled import PAIRS
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.quant import NVFP4, Quantized


@final
@dataclass(frozen=True)
class NVFP4Weight(Convention):
    """`data` uint8 `[N, K / 2]`, `weight_scale` float8_e4m3fn `[N, ceil(K / 16)]`, `global_scale` one float32.

    `divides`: the value is `q * weight_scale / global_scale` (compressed-tensors), whose reciprocal in float32 is kept;
    else all three multiply (ModelOpt). `scalar`: the shape in which one number is written.
    """

    data: str
    global_scale: str
    divides: bool
    scalar: tuple[int, ...] = ()

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return (self.data, "weight_scale", self.global_scale)

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        data = matrix.weight(self.data, *PAIRS).view(torch.uint8)
        grid = NVFP4().storage(NVFP4().logical_shape(data), data.dtype)["scale"].shape
        scale = matrix.scale("weight_scale", (torch.float8_e4m3fn,), grid)
        factor = matrix.scale(self.global_scale, (torch.float32,), (1, 1), (1,), ())
        factor = 1 / factor if self.divides else factor
        if bool(factor.isinf().any()):
            raise matrix.fault(self.global_scale, "is too small to have a reciprocal in float32", "at least 2^-128")
        return Quantized(NVFP4(), data, {"scale": scale, "global_scale": factor})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        if stored.format != NVFP4():
            raise self.refuse(stored.format, "NVFP4()")
        factor = stored.scales["global_scale"].reshape(self.scalar)
        factor = 1 / factor if self.divides else factor
        return {self.data: stored.data, "weight_scale": stored.scales["scale"], self.global_scale: factor}
