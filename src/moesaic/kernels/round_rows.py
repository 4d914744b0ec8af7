"""Rows as a format holds them: quantized and read back, in the dtype that the products take.

A value that is not finite stays as it is and takes part in no scale. A scale that all rows share sees the rows of live
tiles only, so what undefined rows hold changes nothing. The arithmetic is that of `quant/`: one division, rounded to
nearest, ties to even.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.rounded_form import RoundedForm
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.stored_codes import e8m0
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2

WIDE = 1024
"""Columns of a program, where no scale needs more."""


def round_rows(
    rows: Tensor,
    order: RowOrder,
    form: RoundedForm,
    dtype: torch.dtype,
    *,
    top_k: int = 0,
    row_weights: Tensor | None = None,
) -> Tensor:
    """[R, C] in `dtype`: `rows` [R, C] rounded, or with `row_weights` [R] of pairs row r // top_k times its
    weight. `order` says which rows are live: pairs if `top_k` is above 0, whose rows are `rows` [pair // top_k].
    """
    count, columns = rows.shape[0] if row_weights is None else row_weights.numel(), rows.shape[1]
    out = rows.new_empty(count, columns, dtype=dtype)
    _rounded(rows, order, form, out, None, top_k, row_weights)
    return out


def code_rows(
    rows: Tensor, order: RowOrder, form: RoundedForm, *, top_k: int = 0, row_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The codes [R, C] of what `round_rows` gives, E4M3 or int8, and their scales [R, G] in float32.

    An infinity, which E4M3 does not have, becomes NaN; int8 has neither, so its rows' scales become NaN.
    """
    count, columns = rows.shape[0] if row_weights is None else row_weights.numel(), rows.shape[1]
    groups = ceil_div(columns, form.columns) if form.columns > 0 else 1
    codes = rows.new_empty(count, columns, dtype=torch.int8 if form.code == "int8" else torch.float8_e4m3fn)
    scales = rows.new_empty(count, groups, dtype=torch.float32)
    _rounded(rows, order, form, codes, scales, top_k, row_weights)
    return codes, scales


def _rounded(
    rows: Tensor,
    order: RowOrder,
    form: RoundedForm,
    out: Tensor,
    scales: Tensor | None,
    top_k: int,
    row_weights: Tensor | None,
) -> None:
    count, columns = out.shape
    overlap = overlap_launches(rows.device)
    dependent = {"OVERLAP": overlap, **({"launch_pdl": True} if overlap else {})}
    weights = rows if row_weights is None else row_weights
    largest = out
    if form.shared:
        largest = torch.zeros(1, dtype=torch.int32, device=rows.device)
        _largest[(order.max_tiles, ceil_div(columns, WIDE))](
            rows, rows.stride(0), weights, largest, order.pairs, order.tiles, order.max_tiles,
            K=top_k, COLUMNS=columns, SCALED=row_weights is not None, WIDE=WIDE, num_warps=4, **dependent,
        )  # fmt: skip
    wide = next_power_of_2(columns) if form.columns == 0 else max(WIDE, form.columns)
    _round[(count, ceil_div(columns, wide))](
        rows, rows.stride(0), weights, largest, out, out if scales is None else scales,
        CODED=scales is not None, K=top_k if row_weights is not None else 1, COLUMNS=columns, WIDE=wide,
        SCALED=row_weights is not None, FORM=form, num_warps=4 if wide <= 2048 else 8, **dependent,
    )  # fmt: skip


@DirectLaunch
@triton.jit(do_not_specialize=["max_tiles"])
@no_type_check
def _largest(
    rows, row_stride, row_weights, largest, pairs, tiles, max_tiles,
    K: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    tile = tl.program_id(0)
    if tl.load(tiles + tile) >= 0:
        first = tl.load(tiles + max_tiles + tile)
        stop = tl.load(tiles + 2 * max_tiles + tile)
        column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        found = tl.zeros([WIDE], tl.float32)
        for row in range(first, stop):
            pair = tl.load(pairs + row) if K > 0 else row
            source = pair // K if K > 0 else row
            values = tl.load(rows + source.to(tl.int64) * row_stride + column, mask=column < COLUMNS, other=0.0)
            values = values.to(tl.float32)
            if SCALED:
                values = values * tl.load(row_weights + pair)
            size = tl.abs(values)
            found = tl.maximum(found, tl.where(size < float("inf"), size, 0.0))
        # Not negative, so the order of the bits is that of the numbers.
        tl.atomic_max(largest, tl.max(found, 0).to(tl.int32, bitcast=True))


@DirectLaunch
@triton.jit
@no_type_check
def _round(
    rows, row_stride, row_weights, largest, out, scales,
    CODED: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    CODE: tl.constexpr = FORM.code  # triton 3.6 passes no text on that is an attribute
    SCALE: tl.constexpr = FORM.scale
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    values = tl.load(rows + row // K * row_stride + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    if SCALED:
        values = values * tl.load(row_weights + row)
    size = tl.abs(values)
    finite = size < float("inf")
    TOP: tl.constexpr = 448.0 if CODE == "e4m3" else 127.0 if CODE == "int8" else 6.0
    if FORM.everything:
        scale = scale_of(tl.load(largest).to(tl.float32, bitcast=True), TOP, SCALE)
        rounded = _nearest(tl.div_rn(values, scale), TOP, CODE)
        if CODED:
            if tl.program_id(1) == 0:
                tl.store(scales + row, scale)
        else:
            rounded = rounded * scale
    else:
        GROUP: tl.constexpr = FORM.columns if FORM.columns > 0 else WIDE
        grouped = tl.reshape(tl.where(finite, values, 0.0), [WIDE // GROUP, GROUP])
        most = tl.max(tl.abs(grouped), 1)
        if SCALE == "e4m3":
            shared = scale_of(tl.load(largest).to(tl.float32, bitcast=True), 2688.0, "float32")
            fine = tl.maximum(tl.div_rn(most, 6.0 * shared), 0.001953125)
            scale = tl.where(most > 0, _nearest(fine, 448.0, "e4m3"), 1.0)
            codes = _nearest(tl.div_rn(grouped, (scale * shared)[:, None]), TOP, CODE)
            rounded = codes * scale[:, None] * shared
        else:
            scale = scale_of(most, TOP, SCALE)
            rounded = _nearest(tl.div_rn(grouped, scale[:, None]), TOP, CODE)
            if CODED:
                GROUPS: tl.constexpr = (COLUMNS + GROUP - 1) // GROUP
                if CODE == "int8":
                    lost = tl.reshape((~finite & (column < COLUMNS)).to(tl.int32), [WIDE // GROUP, GROUP])
                    scale = tl.where(tl.max(lost, 1) > 0, float("nan"), scale)
                group = tl.program_id(1) * (WIDE // GROUP) + tl.arange(0, WIDE // GROUP)
                tl.store(scales + row * GROUPS + group, scale, mask=group < GROUPS)
            else:
                rounded = rounded * scale[:, None]
        rounded = tl.reshape(rounded, [WIDE])
    at = out + row * COLUMNS + column
    if CODED and CODE == "e4m3":
        codes = tl.where(finite, rounded, float("nan")).to(tl.float8e4nv)
        tl.store(at, codes, mask=column < COLUMNS)
    elif CODED:
        tl.store(at, rounded.to(tl.int8), mask=column < COLUMNS)
    else:
        tl.store(at, tl.where(finite, rounded, values).to(out.dtype.element_ty), mask=column < COLUMNS)


@triton.jit
@no_type_check
def scale_of(largest, TOP: tl.constexpr, SCALE: tl.constexpr):
    """The scale with which a tile whose largest magnitude is `largest` ends at the code TOP."""
    if SCALE == "within":
        code = (largest.to(tl.int32, bitcast=True) >> 23) - 2
        scale = e8m0(tl.minimum(tl.maximum(code, 0), 254))
    else:
        wanted = tl.div_rn(largest, largest * 0.0 + TOP)
        if SCALE == "above":
            bits = wanted.to(tl.int32, bitcast=True)
            scale = e8m0(tl.minimum((bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32), 254))
        elif SCALE == "bfloat16":
            scale = tl.maximum(wanted.to(tl.bfloat16).to(tl.float32), 1.1754943508222875e-38)
        elif SCALE == "float16":
            scale = tl.maximum(wanted.to(tl.float16).to(tl.float32), 5.960464477539063e-08)
        else:
            scale = tl.maximum(wanted, 1.1754943508222875e-38)
    return tl.where(largest > 0, scale, 1.0)


@triton.jit
@no_type_check
def _nearest(values, TOP: tl.constexpr, CODE: tl.constexpr):
    """The nearest number of the code, ties to even: adding 1.5 * 2^23 leaves whole numbers."""
    values = tl.minimum(tl.maximum(values, -TOP), TOP)
    if CODE == "int8":
        return (values + 12582912.0) - 12582912.0
    else:
        LEAST: tl.constexpr = -6 if CODE == "e4m3" else 0
        DIGITS: tl.constexpr = 3 if CODE == "e4m3" else 1
        power = tl.maximum(((values.to(tl.int32, bitcast=True) >> 23) & 255) - 127, LEAST) - DIGITS
        steps = values * ((127 - power) << 23).to(tl.float32, bitcast=True)
        return ((steps + 12582912.0) - 12582912.0) * ((127 + power) << 23).to(tl.float32, bitcast=True)
