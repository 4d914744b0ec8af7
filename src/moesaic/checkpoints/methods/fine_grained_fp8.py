"""FineGrainedFP8: `quant_method: fp8`, as DeepSeek-V3 brought it, and what grew from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from typing_extensions import override

from moesaic.checkpoints.conventions import Convention, MicroscaledWeight, ScaledWeight
from moesaic.checkpoints.methods.base import Method
from moesaic.checkpoints.methods.settings import Settings
from moesaic.quant import FP8, MXFP4, MXFP8, Format, PerBlock, PerGroup, PerTensor

SCALES: tuple[str, ...] = ("weight_scale_inv", "scale", "weight_scale", "qscale_weight", "scale_inv")
"""What families call the scale beside a weight, which multiplies: DeepSeek-V3 and Qwen3, DeepSeek-V4, Inkling2 and
per-tensor files, Mistral-Large-4, transformers' stacked experts."""


@final
@dataclass(frozen=True)
class FineGrainedFP8(Method):
    """A scale for a block of `block` (rows, columns), for the matrix if None. `(1, 32)` with codes of E8M0 is MXFP8.

    `ue8m0`: scales are powers of two (float32 in DeepSeek-V3.2, float8_e8m0fnu in V4). `fp4`: experts are MXFP4 pairs
    in int8 (DeepSeek-V4, `expert_dtype`). `scale_name` is the one written.
    """

    block: tuple[int, int] | None = (128, 128)
    ue8m0: bool = False
    fp4: bool = False
    static: bool = False
    scale_name: str = "weight_scale_inv"

    @classmethod
    @override
    def of(cls, settings: Settings) -> Method | None:
        if settings.method not in {"fp8", "mxfp8"}:
            return None
        block = settings.fields.get("weight_block_size", [1, 32] if settings.method == "mxfp8" else None)
        if block is not None:
            positive = isinstance(block, list | tuple) and all(isinstance(n, int) and n > 0 for n in block)
            if not positive or len(block) != 2:
                raise settings.fault("weight_block_size", "two whole numbers above zero, or null")
            block = (block[0], block[1])
        return cls(
            block,
            settings.option("scale_fmt", ("float", "ue8m0", None), None) == "ue8m0",
            settings.option("expert_dtype", ("fp8", "fp4", None), None) == "fp4",
            settings.option("activation_scheme", ("dynamic", "static"), "dynamic") == "static",
        )

    @override
    def convention(self, module: str) -> Convention:
        scale = (self.scale_name, *(name for name in SCALES if name != self.scale_name))
        if self.fp4:
            return MicroscaledWeight(MXFP4(), "weight", scale, torch.int8, torch.float8_e8m0fnu)
        if self.block == (1, 32):
            return MicroscaledWeight(MXFP8(), "weight", scale)
        return ScaledWeight(FP8(self._granularity()), scale)

    @override
    def inputs(self, module: str) -> Format:
        if self.block is None:
            return FP8(PerTensor())
        if self.block == (1, 32):
            return MXFP8()
        return FP8(PerGroup(self.block[1]), scale=torch.float8_e8m0fnu if self.ue8m0 else torch.float32)

    @override
    def to_config(self) -> dict[str, Any] | None:
        return {
            "quant_method": "fp8",
            "activation_scheme": "static" if self.static else "dynamic",
            "weight_block_size": None if self.block is None else list(self.block),
            **({"scale_fmt": "ue8m0"} if self.ue8m0 else {}),
            **({"expert_dtype": "fp4"} if self.fp4 else {}),
        }

    def _granularity(self) -> PerTensor | PerGroup | PerBlock:
        if self.block is None:
            return PerTensor()
        rows, columns = self.block
        return PerGroup(columns) if rows == 1 else PerBlock(rows, columns)
