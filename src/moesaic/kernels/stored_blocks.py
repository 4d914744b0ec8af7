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
from moesaic.kernels.stored_codes import e4m3, e8m0, one_of, two_of


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
    there = (row < ROWS)[:, None]
    first, second = _codes(stored[0], desc, matrix, row, start, there, ROWS, COLUMNS, FORM, low.dtype, FAST, TMA)
    if CODED:
        part = tl.zeros(sums.shape, tl.int32 if FORM.code == "int8" else tl.float32)
        part = _add(part, first, second, low, high, FORM, SWAP).to(tl.float32) * across(row_scale, not SWAP)
        if FORM.one_scale(COLUMNS):
            return sums + part
        else:
            scale = _number(_scale(stored[1], matrix, row, start, 0, row < ROWS, ROWS, COLUMNS, FORM), FORM)
            return sums + part * across(scale, SWAP)
    elif FORM.inside:
        first = _read_back(first, stored, matrix, row, start, there, ROWS, COLUMNS, FORM)
        if FORM.packed:
            second = _read_back(second, stored, matrix, row, start + FORM.half, there, ROWS, COLUMNS, FORM)
        return _add(sums, first, second, low, high, FORM, SWAP)
    elif FORM.one_scale(COLUMNS):
        return _add(sums, first, second, low, high, FORM, SWAP)
    else:
        part = _add(tl.zeros_like(sums), first, second, low, high, FORM, SWAP)
        scale = _number(_scale(stored[1], matrix, row, start, 0, row < ROWS, ROWS, COLUMNS, FORM), FORM)
        return sums + part * across(scale, SWAP)


@triton.jit
@no_type_check
def values_of(stored, matrix, row, start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """128 columns of weights in float32, as `add_products` takes them: two halves for codes of 4 bits."""
    there = (row < ROWS)[:, None]
    first, second = _codes(
        stored[0], stored[0], matrix, row, start, there, ROWS, COLUMNS, FORM, tl.float32, False, False
    )
    if FORM.inside:
        first = _read_back(first, stored, matrix, row, start, there, ROWS, COLUMNS, FORM)
        if FORM.packed:
            second = _read_back(second, stored, matrix, row, start + FORM.half, there, ROWS, COLUMNS, FORM)
    else:
        scale = _number(_scale(stored[1], matrix, row, start, 0, row < ROWS, ROWS, COLUMNS, FORM), FORM)[:, None]
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
        scale = _number(_scale(stored[1], matrix, row, 0, 0, row < ROWS, ROWS, COLUMNS, FORM), FORM)
        sums = sums * across(scale, SWAP)
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
    TMA: tl.constexpr,
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
        return two_of(block, CODE, DTYPE, FAST)
    else:
        numbers = one_of(block, CODE, DTYPE)
        return numbers, numbers


@triton.jit
@no_type_check
def _read_back(
    numbers, stored, matrix, row, start, there, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr
):
    """Columns of numbers times the scale of each group."""
    GROUPS: tl.constexpr = FORM.groups
    group = tl.arange(0, GROUPS)
    column = start + group * FORM.tile_columns
    held = there & (column < COLUMNS)[None, :]
    if FORM.zero_point:
        zero = _grid(stored[2], matrix, row[:, None], column[None, :], held, ROWS, COLUMNS, FORM)
        numbers = numbers - _spread(zero.to(numbers.dtype), numbers, GROUPS, FORM)
    scale = _number(_scale(stored[1], matrix, row[:, None], start, group[None, :], held, ROWS, COLUMNS, FORM), FORM)
    if FORM.scale == "float" or numbers.dtype == tl.float16:
        return (numbers.to(tl.float32) * _spread(scale, numbers, GROUPS, FORM)).to(numbers.dtype)
    else:  # exact: numbers of 4 bits or 8 with powers of two, or 2 significant bits with 4
        return numbers * _spread(scale.to(numbers.dtype), numbers, GROUPS, FORM)


@triton.jit
@no_type_check
def _spread(values, like, GROUPS: tl.constexpr, FORM: tl.constexpr):
    """`[N, GROUPS]` at each of the group's columns."""
    wide = tl.broadcast_to(values[:, :, None], [values.shape[0], GROUPS, FORM.width // GROUPS])
    return tl.reshape(wide, like.shape)


@triton.jit
@no_type_check
def _grid(values, matrix, row, column, mask, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """What stands beside the codes at (`row`, `column`)."""
    HEIGHT: tl.constexpr = 1 if FORM.tile_rows == 0 else (ROWS + FORM.tile_rows - 1) // FORM.tile_rows
    WIDTH: tl.constexpr = 1 if FORM.tile_columns == 0 else (COLUMNS + FORM.tile_columns - 1) // FORM.tile_columns
    at = values + matrix.to(tl.int64) * (HEIGHT * WIDTH)
    if FORM.tile_rows == 0:
        at += row * 0
    else:
        at += row // FORM.tile_rows * WIDTH
    if FORM.tile_columns > 0:
        at += column // FORM.tile_columns
    return tl.load(at, mask=mask, other=0)


@triton.jit
@no_type_check
def _scale(values, matrix, row, start, group, mask, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """The scales of the codes in `row`, of the columns from `start` on and `group` scales further."""
    if FORM.planes > 0:
        return _boxed(values, matrix, row, start, group, mask, ROWS, COLUMNS, FORM)
    else:
        return _grid(values, matrix, row, start + group * FORM.tile_columns, mask, ROWS, COLUMNS, FORM)


@triton.jit
@no_type_check
def _boxed(values, matrix, row, start, group, mask, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """Those that lie by boxes of 64 rows and 128 columns."""
    BLOCKS: tl.constexpr = (COLUMNS + FORM.block - 1) // FORM.block
    BOXES: tl.constexpr = (ROWS + 63) // 64
    PER: tl.constexpr = FORM.block // FORM.tile_columns // FORM.planes
    BOX: tl.constexpr = 64 * PER * FORM.planes
    first = start % FORM.block // FORM.tile_columns  # a half of a block lies in one plane
    at = values + matrix.to(tl.int64) * (BLOCKS * BOXES * BOX)
    at += start // FORM.block * (BOXES * BOX) + first // PER * (64 * PER) + first % PER
    # Of 32 bits, and the same for all steps: addresses of 64 would be kept in twice the registers.
    return tl.load(at + ((row + (row & -64) * (FORM.planes - 1)) * PER + group), mask=mask, other=0)


@triton.jit
@no_type_check
def _number(scale, FORM: tl.constexpr):
    """A scale in float32."""
    if FORM.scale == "e8m0":
        return e8m0(scale)
    elif FORM.scale == "e4m3":
        return e4m3(scale).to(tl.float32)
    else:
        return scale.to(tl.float32)
