"""UnpackedINT4: codes of 4 bits in int8, as compressed-tensors keeps weights whose inputs are quantized too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.conventions.scaled import FLOATS
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.quant import INT4, Quantized
from moesaic.quant.nibbles import pack, unpack


@final
@dataclass(frozen=True)
class UnpackedINT4(Convention):
    """`weight` int8 `[N, K]` from -8 to 7, and `weight_scale` `[N, ceil(K / g)]`; no zero points.

    Codes are those of the format less 8. Source: compressed-tensors 0.20, int-quantized of W4AFP8 and W4A8.
    """

    of: INT4

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        codes = matrix.weight("weight", torch.int8)
        if codes.shape[1] % 2 or bool(((codes < -8) | (codes > 7)).any()):
            found = f"has {codes.shape[1]} columns from {int(codes.min())} to {int(codes.max())}"
            raise matrix.fault("weight", found, "an even number of columns from -8 to 7")
        scale = matrix.scale("weight_scale", FLOATS, self.of.granularity.grid(tuple(codes.shape)))
        return Quantized(replace(self.of, scale=scale.dtype), pack((codes + 8).to(torch.uint8)), {"scale": scale})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        kind = stored.format
        if self.of.zero_point or not isinstance(kind, INT4) or replace(self.of, scale=kind.scale) != kind:
            raise self.refuse(kind, f"{replace(self.of, zero_point=False)!r} with scales of any dtype")
        codes = unpack(stored.data).to(torch.int8) - 8
        return {"weight": codes, "weight_scale": stored.scales["scale"]}
