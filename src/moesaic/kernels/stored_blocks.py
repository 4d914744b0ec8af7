"""A block of stored weights times rows: some rows of one matrix, 128 columns at a time.

`stored` is the tuple (codes, scales, zero points less 8, global scales) of a projection. Matrix number `matrix` of it
has ROWS rows and COLUMNS columns: the gate or the up of an expert, or its down.

Where rows are codes too, and of the same kind, they are multiplied as such, and sums of 128 products are scaled by
both: the tensor core's sums of FP8 numbers keep 14 bits, enough for so many (DeepSeek-V3, arXiv:2412.19437, 3.3.2).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.row_tiles import across, load_rows, multiply, scaled
from moesaic.kernels.scaled_numbers import scaled_numbers
from moesaic.kernels.stored_codes import one_of, two_of
from moesaic.kernels.stored_scales import scale_of_columns


@triton.jit
@no_type_check
def load_columns(
    x, row_stride, source, live, start, scale, COLUMNS: tl.constexpr, SCALED: tl.constexpr, FORM: tl.constexpr
):
    """128 columns of rows `source` of x from `start` on: in two halves for codes of 4 bits, else at once, twice."""
    at = x + source[:, None].to(tl.int64) * row_stride + tl.arange(0, FORM.width)[None, :]
    inner = tl.arange(0, FORM.width)
    low = scaled(load_rows(at, inner, start, live, COLUMNS, FORM.block, False), scale, SCALED)
    if FORM.packed:
        high = load_rows(at, inner, start + FORM.half, live, COLUMNS, FORM.block, False)
        return low, scaled(high, scale, SCALED)
    else:
        return low, low


@triton.jit
@no_type_check
def scale_of_rows(scales, source, live, start, GROUPS: tl.constexpr):
    """Of each row the scale of the columns from `start` on; of rows that are no codes none."""
    if GROUPS > 0:
        group = 0 if GROUPS == 1 else start // 128  # `RoundedForm.coded` takes no other groups
        return tl.load(scales + source.to(tl.int64) * GROUPS + group, mask=live, other=0.0)
    else:
        return 0.0


@triton.jit
@no_type_check
def add_products(
    sums, stored, desc, matrix, row, start, low, high, row_scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr, SWAP: tl.constexpr,
    CODED: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """`sums` and the products of weight rows `row` with the rows' halves `low` and `high`; `finish` scales the rest.

    `row_scale` [N], where rows are CODED, is that of these columns.
    """
    BARE: tl.constexpr = FORM.bare and FAST and low.dtype == tl.bfloat16
    there = (row < ROWS)[:, None]
    first, second = _codes(stored[0], desc, matrix, row, start, there, ROWS, COLUMNS, FORM, low.dtype, FAST, BARE, TMA)
    if CODED:
        part = tl.zeros(sums.shape, tl.int32 if FORM.code == "int8" else tl.float32)
        part = _add(part, first, second, low, high, FORM, SWAP).to(tl.float32) * across(row_scale, not SWAP)
        if FORM.one_scale(COLUMNS):
            return sums + part
        else:
            return sums + part * across(scale_of_columns(stored[1], matrix, row, start, ROWS, COLUMNS, FORM), SWAP)
    elif FORM.inside:
        first, second = scaled_numbers(first, second, stored, matrix, row, start, ROWS, COLUMNS, FORM, FAST, BARE)
        return _add(sums, first, second, low, high, FORM, SWAP)
    elif FORM.one_scale(COLUMNS):
        return _add(sums, first, second, low, high, FORM, SWAP)
    else:
        part = _add(tl.zeros_like(sums), first, second, low, high, FORM, SWAP)
        return sums + part * across(scale_of_columns(stored[1], matrix, row, start, ROWS, COLUMNS, FORM), SWAP)


@triton.jit
@no_type_check
def values_of(stored, matrix, row, start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """128 columns of weights in float32, as `add_products` takes them: two halves for codes of 4 bits."""
    there = (row < ROWS)[:, None]
    first, second = _codes(
        stored[0], stored[0], matrix, row, start, there, ROWS, COLUMNS, FORM, tl.float32, False, False, False
    )
    if FORM.inside:
        first, second = scaled_numbers(first, second, stored, matrix, row, start, ROWS, COLUMNS, FORM, False, False)
    else:
        scale = scale_of_columns(stored[1], matrix, row, start, ROWS, COLUMNS, FORM)[:, None]
        first, second = first * scale, second * scale
    if FORM.global_scale:
        whole = tl.load(stored[3] + matrix)
        first, second = first * whole, second * whole
    return first, second


@triton.jit
@no_type_check
def finish(
    sums, stored, matrix, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, SWAP: tl.constexpr
):
    """The scales that are the same for all columns."""
    if FORM.one_scale(COLUMNS):
        sums = sums * across(scale_of_columns(stored[1], matrix, row, 0, ROWS, COLUMNS, FORM), SWAP)
    if FORM.global_scale:
        sums = sums * tl.load(stored[3] + matrix)
    return sums


@triton.jit
@no_type_check
def _add(sums, first, second, low, high, FORM: tl.constexpr, SWAP: tl.constexpr):
    sums = multiply(first, low, sums, SWAP)
    if FORM.packed:
        sums = multiply(second, high, sums, SWAP)
    return sums


@triton.jit
@no_type_check
def _codes(
    codes, desc, matrix, row, start, there,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, DTYPE: tl.constexpr, FAST: tl.constexpr,
    BARE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """The numbers of 128 columns: two halves for codes of 4 bits, else all of them, twice."""
    CODE: tl.constexpr = FORM.code  # triton 3.6 passes no text on that is an attribute
    STRIDE: tl.constexpr = (COLUMNS + FORM.block - 1) // FORM.block * FORM.half if FORM.packed else COLUMNS
    byte = start // 2 if FORM.packed else start
    inner = tl.arange(0, FORM.width)[None, :]
    # int64 for the matrix only: all of them pass 2^31 elements, one does not.
    at = codes + matrix.to(tl.int64) * (ROWS * STRIDE) + row[:, None] * STRIDE + inner
    if TMA:  # beyond a matrix lies the next one: its sums are not stored
        block = desc.load([matrix * ROWS + tl.min(row, 0), byte])
    elif FORM.packed or COLUMNS % FORM.block == 0:
        block = tl.load(at + byte, mask=there, other=0.0)
    else:
        block = tl.load(at + byte, mask=there & (inner < COLUMNS - start), other=0.0)
    if FORM.packed:
        return two_of(block, CODE, DTYPE, FAST, BARE)
    else:
        numbers = one_of(block, CODE, DTYPE)
        return numbers, numbers
