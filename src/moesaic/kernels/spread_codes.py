"""codes[places[t, k]] = FP8 codes of x[t], their scales beside them: each token is rounded once and written K times.

The arithmetic is that of `round_rows.py`. Scales are written [groups, P], so that those of a tile's rows for one block
of columns are neighbours.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.round_rows import scale_of
from moesaic.kernels.rounded_form import RoundedForm
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2

ELEMENTS = 4096
"""Of a program: a few rows of few columns, or a part of a row of many."""


def spread_codes(
    x: Tensor,
    places: Tensor | None,
    row_weights: Tensor | None,
    top_k: int,
    num_rows: int,
    form: RoundedForm,
) -> tuple[Tensor, Tensor]:
    """Codes [num_rows, C] of x [T, C] and float32 scales [G, num_rows or a few more] of its G groups of columns.

    `places` [T * K]: rows of a pair, -1 for none; without them row t is x[t]. `row_weights` [T, K] multiplies before
    the rounding. Rows that are nobody's stay undefined. `form` has a scale for 128 columns or for a row.
    """
    count, columns = x.shape
    groups = ceil_div(columns, form.columns) if form.columns > 0 else 1
    codes = torch.empty(num_rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    stride = -(-num_rows // 4) * 4  # TMA takes strides of 16 bytes
    scales = torch.empty(groups, stride, dtype=torch.float32, device=x.device)
    whole = max(128, next_power_of_2(columns))
    wide = whole if form.columns == 0 else min(2048, whole)
    height = max(1, ELEMENTS // wide)
    overlap = overlap_launches(x.device)
    _spread_codes[(ceil_div(count, height), ceil_div(columns, wide))](
        x,
        x.stride(0),
        x if places is None else places,
        x if row_weights is None else row_weights,
        codes,
        scales,
        count,
        stride,
        K=top_k,
        COLUMNS=columns,
        PLACED=places is not None,
        SCALED=row_weights is not None,
        HEIGHT=height,
        WIDE=wide,
        FORM=form,
        OVERLAP=overlap,
        num_warps=8,
        **({"launch_pdl": True} if overlap else {}),
    )
    return codes, scales


@DirectLaunch
@triton.jit(do_not_specialize=["count"])
@no_type_check
def _spread_codes(
    x, row_stride, places, row_weights, codes, scales, count, stride,
    K: tl.constexpr, COLUMNS: tl.constexpr, PLACED: tl.constexpr, SCALED: tl.constexpr, HEIGHT: tl.constexpr,
    WIDE: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    token = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = (token < count)[:, None] & (column < COLUMNS)[None, :]
    at = x + token.to(tl.int64)[:, None] * row_stride + column[None, :]
    values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        for slot in tl.static_range(K):
            pair = token * K + slot
            weight = tl.load(row_weights + pair, mask=token < count, other=0.0)
            row = tl.load(places + pair, mask=token < count, other=-1)
            coded, scale = _coded(values * weight[:, None], FORM)
            _store(coded, scale, codes, scales, row, column, stride, COLUMNS, FORM)
    else:
        coded, scale = _coded(values, FORM)
        if PLACED:
            for slot in tl.static_range(K):
                row = tl.load(places + token * K + slot, mask=token < count, other=-1)
                _store(coded, scale, codes, scales, row, column, stride, COLUMNS, FORM)
        else:
            _store(coded, scale, codes, scales, tl.where(token < count, token, -1), column, stride, COLUMNS, FORM)


@triton.jit
@no_type_check
def _coded(values, FORM: tl.constexpr):
    """Codes [R, W] and scales [R, groups]."""
    SCALE: tl.constexpr = FORM.scale  # triton 3.6 passes no text on that is an attribute
    HEIGHT: tl.constexpr = values.shape[0]
    WIDE: tl.constexpr = values.shape[1]
    GROUP: tl.constexpr = FORM.columns if FORM.columns > 0 else WIDE
    codes, scale = codes_of(tl.reshape(values, [HEIGHT * (WIDE // GROUP), GROUP]), SCALE)
    return tl.reshape(codes, [HEIGHT, WIDE]), tl.reshape(scale, [HEIGHT, WIDE // GROUP])


@triton.jit
@no_type_check
def codes_of(values, SCALE: tl.constexpr):
    """E4M3 codes of values [G, C] and the scale [G] of each row; what is not finite becomes NaN, in no scale."""
    size = tl.abs(values)
    finite = size < float("inf")
    scale = scale_of(tl.max(tl.where(finite, size, 0.0), 1), 448.0, SCALE)
    inverse = tl.div_rn(scale * 0.0 + 1.0, scale)[:, None]
    values = tl.where(finite, values, float("nan"))
    # The quotient, rounded as by one division (Markstein, 1990), in three instructions instead of a dozen.
    quotient = values * inverse
    quotient = tl.fma(tl.fma(quotient, -scale[:, None], values), inverse, quotient)
    return quotient.to(tl.float8e4nv), scale  # rounds to the nearest code, ties to even, and stops at 448


@triton.jit
@no_type_check
def _store(coded, scale, codes, scales, row, column, stride, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    held = row >= 0
    row = row.to(tl.int64)
    tl.store(codes + row[:, None] * COLUMNS + column[None, :], coded, mask=held[:, None] & (column < COLUMNS)[None, :])
    GROUPS: tl.constexpr = (COLUMNS + FORM.columns - 1) // FORM.columns if FORM.columns > 0 else 1
    group = tl.program_id(1) * scale.shape[1] + tl.arange(0, scale.shape[1])
    at = scales + group[None, :].to(tl.int64) * stride + row[:, None]
    tl.store(at, scale, mask=held[:, None] & (group < GROUPS)[None, :])
