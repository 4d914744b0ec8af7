"""Every format with every kind of field, and the rule by which the oracle stores the same."""

import numpy as np
import torch

from moesaic import FP8, INT4, INT8, MXFP4, MXFP8, NVFP4, PerBlock, PerGroup, PerRow, PerTensor

BF16, FP16, E8M0 = torch.bfloat16, torch.float16, torch.float8_e8m0fnu


def _fp8(tile, scale="float32"):
    return {"kind": "fp8", "tile": tile, "scale": scale}


def _int8(tile, scale="float32"):
    return {"kind": "int8", "tile": tile, "scale": scale}


def _int4(columns, zero_point=False, scale="float32"):  # noqa: FBT002
    return {"kind": "int4", "tile": (1, columns), "scale": scale, "zero_point": zero_point}


RULES = (
    (FP8(PerTensor()), _fp8((None, None))),
    (FP8(PerRow()), _fp8((1, None))),
    (FP8(PerBlock()), _fp8((128, 128))),
    (FP8(PerBlock(16, 32)), _fp8((16, 32))),
    (FP8(PerGroup(128)), _fp8((1, 128))),
    (FP8(PerRow(), scale=BF16), _fp8((1, None), "bfloat16")),
    (FP8(PerRow(), scale=FP16), _fp8((1, None), "float16")),
    (FP8(PerBlock(), scale=E8M0), _fp8((128, 128), "e8m0")),
    (FP8(PerGroup(128), scale=E8M0), _fp8((1, 128), "e8m0")),
    (INT8(PerRow()), _int8((1, None))),
    (INT8(PerTensor()), _int8((None, None))),
    (INT8(PerGroup(128), scale=BF16), _int8((1, 128), "bfloat16")),
    (INT4(PerGroup(32)), _int4(32)),
    (INT4(PerGroup(64)), _int4(64)),
    (INT4(PerGroup(128)), _int4(128)),
    (INT4(PerRow()), _int4(None)),
    (INT4(PerGroup(32), scale=BF16), _int4(32, scale="bfloat16")),
    (INT4(PerGroup(128), scale=FP16), _int4(128, scale="float16")),
    (INT4(PerGroup(32), zero_point=True), _int4(32, True)),
    (INT4(PerGroup(64), zero_point=True), _int4(64, True)),
    (INT4(PerGroup(128), zero_point=True), _int4(128, True)),
    (INT4(PerGroup(128), zero_point=True, scale=FP16), _int4(128, True, "float16")),
    (MXFP8(), _fp8((1, 32), "e8m0")),
    (MXFP4(), {"kind": "mxfp4", "tile": (1, 32)}),
    (NVFP4(), {"kind": "nvfp4", "tile": (1, 16)}),
)
FORMATS = tuple(stored for stored, _ in RULES)
FOUR_BITS = tuple(stored for stored in FORMATS if isinstance(stored, INT4 | MXFP4 | NVFP4))
EIGHT_BITS = tuple(stored for stored in FORMATS if stored not in FOUR_BITS)


def values(*shape, seed=0, sigma=0.02, dtype=torch.float32):
    """Normal numbers with outliers, whole columns a hundred times smaller, and some zeros."""
    g = np.random.default_rng(seed)
    drawn = g.normal(size=shape) * sigma
    drawn[..., ::7] *= 0.01
    drawn[g.random(shape) < 0.02] *= 8
    drawn[g.random(shape) < 0.02] = 0
    return torch.tensor(drawn).to(dtype)


def rule_of(stored):
    """The oracle's rule for a format above."""
    return next(rule for known, rule in RULES if known == stored)
