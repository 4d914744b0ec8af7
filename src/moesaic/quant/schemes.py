"""Scheme: the formats of a layer's weights and inputs, and the schemes that open models are served in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from moesaic.checks import instance
from moesaic.errors import FormatError
from moesaic.quant.base import Format
from moesaic.quant.fp8 import FP8
from moesaic.quant.granularity import PerBlock, PerGroup, PerRow, PerTensor
from moesaic.quant.int4 import INT4
from moesaic.quant.int8 import INT8
from moesaic.quant.mxfp4 import MXFP4
from moesaic.quant.mxfp8 import MXFP8
from moesaic.quant.nvfp4 import NVFP4
from moesaic.quant.plain import Plain


@final
@dataclass(frozen=True)
class Scheme:
    """How a layer's weights and inputs are stored while it computes; `Scheme(Plain(), Plain())` is W16A16.

    With an input format other than Plain, the rows that each projection reads (hidden states, then the activation's
    output) are rounded to it, with scales from live rows only.
    """

    weights: Format
    inputs: Format

    def __post_init__(self) -> None:
        for name in ("weights", "inputs"):
            instance("Scheme", name, getattr(self, name), Format, FormatError, example="Plain()")

    def check_columns(self, columns: int) -> None:
        """Raise FormatError if weights or rows of so many columns cannot be stored (an odd number in 4 bits)."""
        for stored in (self.weights, self.inputs):
            stored.storage((1, columns), torch.float32)


UNQUANTIZED: Scheme = Scheme(weights=Plain(), inputs=Plain())
"""Weights and inputs in the dtype of the layer (W16A16 in bfloat16 and float16, W32A32 in float32)."""

FP8_TENSOR: Scheme = Scheme(weights=FP8(PerTensor()), inputs=FP8(PerTensor()))
"""W8A8 with one scale for each matrix of weights and for all rows (ModelOpt FP8, compressed-tensors FP8)."""

FP8_ROW: Scheme = Scheme(weights=FP8(PerRow()), inputs=FP8(PerRow()))
"""W8A8 with one scale for each output channel and for each token (compressed-tensors FP8_DYNAMIC)."""

FP8_BLOCK: Scheme = Scheme(weights=FP8(PerBlock()), inputs=FP8(PerGroup(128)))
"""W8A8 of DeepSeek-V3, Kimi-K2, Qwen3-FP8 and GLM-FP8: 128 x 128 weights or 1 x 128 inputs share a scale."""

FP8_BLOCK_UE8M0: Scheme = Scheme(
    weights=FP8(PerBlock(), scale=torch.float8_e8m0fnu), inputs=FP8(PerGroup(128), scale=torch.float8_e8m0fnu)
)
"""FP8_BLOCK with scales that are powers of two (DeepSeek-V4)."""

INT8_ROW: Scheme = Scheme(weights=INT8(PerRow()), inputs=INT8(PerRow()))
"""W8A8 in integers with one scale for each output channel and for each token (compressed-tensors W8A8)."""

MXFP8_MXFP8: Scheme = Scheme(weights=MXFP8(), inputs=MXFP8())
"""W8A8 with a power of two for 32 values (Inkling2, compressed-tensors MXFP8)."""

MXFP4_MXFP8: Scheme = Scheme(weights=MXFP4(), inputs=MXFP8())
"""W4A8 (gpt-oss on hardware with FP8)."""

INT4_FP8: Scheme = Scheme(weights=INT4(PerGroup(128)), inputs=FP8(PerRow()))
"""W4A8 (compressed-tensors W4AFP8)."""

MXFP4_MXFP4: Scheme = Scheme(weights=MXFP4(), inputs=MXFP4())
"""W4A4, emulated where the hardware has no FP4."""

NVFP4_NVFP4: Scheme = Scheme(weights=NVFP4(), inputs=NVFP4())
"""W4A4, emulated where the hardware has no FP4 (compressed-tensors NVFP4)."""

WEIGHT_ONLY: tuple[Scheme, ...] = tuple(
    Scheme(weights=weights, inputs=Plain())
    for weights in (
        FP8(PerTensor()),
        FP8(PerRow()),
        FP8(PerBlock()),
        INT8(PerRow()),
        MXFP8(),
        INT4(PerGroup(32)),
        INT4(PerGroup(64)),
        INT4(PerGroup(128)),
        INT4(PerGroup(32), zero_point=True),
        INT4(PerGroup(64), zero_point=True),
        INT4(PerGroup(128), zero_point=True),
        MXFP4(),
        NVFP4(),
    )
)
"""W8A16 and W4A16: weights are stored in few bits, rows stay in the dtype of the layer."""

SCHEMES: tuple[Scheme, ...] = (
    UNQUANTIZED,
    *WEIGHT_ONLY,
    FP8_TENSOR,
    FP8_ROW,
    FP8_BLOCK,
    FP8_BLOCK_UE8M0,
    INT8_ROW,
    MXFP8_MXFP8,
    INT4_FP8,
    MXFP4_MXFP8,
    MXFP4_MXFP4,
    NVFP4_NVFP4,
)
"""Every scheme that the package names, for declarations, tables and tests; any two formats make another."""
