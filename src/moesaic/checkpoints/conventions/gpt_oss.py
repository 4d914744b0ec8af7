"""BlockedMXFP4: gpt-oss's blocks of 32 values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.matrix import E8M0, StoredMatrix
from moesaic.errors import CheckpointError
from moesaic.quant import MXFP4, Quantized


@final
@dataclass(frozen=True)
class BlockedMXFP4(Convention):
    """`blocks` uint8 `[N, K / 32, 16]`, low bits first, and `scales` uint8 `[N, K / 32]`: K in whole blocks."""

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("blocks", "scales")

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        blocks = matrix.read("blocks", (torch.uint8,))
        if blocks.ndim != 3 or blocks.shape[-1] != 16:
            raise matrix.fault("blocks", f"is of shape {tuple(blocks.shape)}", "rows, groups and 16 bytes")
        scale = matrix.scale("scales", E8M0, tuple(blocks.shape[:2]))
        return Quantized(MXFP4(), blocks.flatten(1), {"scale": scale})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        if stored.format != MXFP4():
            raise self.refuse(stored.format, "MXFP4()")
        if stored.shape[-1] % 32:
            raise CheckpointError(f"a row has {stored.shape[-1]} values, but gpt-oss keeps whole blocks of 32")
        scales = stored.scales["scale"].view(torch.uint8)
        return {"blocks": stored.data.unflatten(-1, (-1, 16)), "scales": scales}
