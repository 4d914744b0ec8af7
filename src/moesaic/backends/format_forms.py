"""How the Triton kernels read a format of weights, and how they round rows to a format of inputs."""

from __future__ import annotations

import torch

from moesaic.kernels.rounded_form import EVERYTHING, RoundedForm
from moesaic.kernels.stored_form import BLOCK, HALF, StoredForm
from moesaic.quant import (
    FP8,
    INT4,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    Format,
    Granularity,
    PerBlock,
    PerGroup,
    PerRow,
    PerTensor,
)


def stored_form(stored: Format) -> StoredForm | None:
    """How weights in the format `stored` are read; None if no kernel reads them."""
    match stored:
        case FP8() | INT8() | INT4():
            code = "e4m3" if isinstance(stored, FP8) else "int8" if isinstance(stored, INT8) else "int4"
            scale = "e8m0" if stored.scale == torch.float8_e8m0fnu else "float"
            zero_point = isinstance(stored, INT4) and stored.zero_point
            return _tiled(code, stored.granularity, scale, zero_point=zero_point)
        case MXFP8() | MXFP4():
            return StoredForm("e4m3" if isinstance(stored, MXFP8) else "e2m1", 1, 32, "e8m0")
        case NVFP4():
            return StoredForm("e2m1", 1, 16, "e4m3", global_scale=True)
        case _:
            return None


def _tiled(code: str, granularity: Granularity, scale: str, *, zero_point: bool) -> StoredForm | None:
    match granularity:
        case PerRow():
            return StoredForm(code, 1, 0, scale, zero_point)
        case PerGroup(columns=columns) | PerBlock(columns=columns) if columns % BLOCK and HALF % columns:
            return None  # a block would hold parts of a group
        case PerGroup(columns=columns):
            return StoredForm(code, 1, columns, scale, zero_point)
        case PerBlock(rows=rows, columns=columns):
            return StoredForm(code, rows, columns, scale, zero_point)
        case PerTensor():
            return StoredForm(code, 0, 0, scale, zero_point)
        case _:
            return None


def rounded_form(stored: Format) -> RoundedForm | None:
    """How rows are rounded to the format `stored`; None if no kernel rounds to it."""
    match stored:
        case FP8() | INT8():
            name = "above" if stored.scale == torch.float8_e8m0fnu else str(stored.scale).removeprefix("torch.")
            return _shared("e4m3" if isinstance(stored, FP8) else "int8", stored.granularity, name)
        case MXFP8():
            return RoundedForm("e4m3", 32, "above")
        case MXFP4():
            return RoundedForm("e2m1", 32, "within")
        case NVFP4():
            return RoundedForm("e2m1", 16, "e4m3")
        case _:
            return None


def _shared(code: str, granularity: Granularity, scale: str) -> RoundedForm | None:
    match granularity:
        case PerGroup(columns=columns) if 1 < columns <= 1024 and columns & (columns - 1) == 0:
            return RoundedForm(code, columns, scale)
        case PerRow():
            return RoundedForm(code, 0, scale)
        case PerTensor():
            return RoundedForm(code, EVERYTHING, scale)
        case _:
            return None
