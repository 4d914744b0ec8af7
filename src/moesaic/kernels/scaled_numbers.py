"""A block of numbers times scales of which it has several in a row: each is spread over the columns that share it."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.stored_scales import grid, number, taken, words_of


@triton.jit
@no_type_check
def scaled_numbers(
    first, second, stored, matrix, row, start,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr, BARE: tl.constexpr,
):  # fmt: skip
    """Both halves of a block of numbers, or twice all of it, times the scales; BARE: they come times 2^-126."""
    if FORM.planes > 0:
        SCALE: tl.constexpr = stored[1].dtype.element_ty
        group = _groups(stored[1], matrix, FORM)
        word = words_of(stored[1], matrix, row, start, 0, ROWS, COLUMNS, FORM)
        first = _times_boxed(first, word, group, 0, SCALE, FORM, FAST, BARE)
        if FORM.planes == 2:
            word = words_of(stored[1], matrix, row, start, 1, ROWS, COLUMNS, FORM)
        return first, _times_boxed(second, word, group, 1, SCALE, FORM, FAST, BARE)
    else:
        first = _read_back(first, stored, matrix, row, start, ROWS, COLUMNS, FORM)
        if FORM.packed:
            return first, _read_back(second, stored, matrix, row, start + FORM.half, ROWS, COLUMNS, FORM)
        else:
            return first, first


@triton.jit
@no_type_check
def _times_boxed(
    numbers, word, group, HALF: tl.constexpr, SCALE: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr,
    BARE: tl.constexpr,
):  # fmt: skip
    """Half a block of numbers times the scales in the `word` [N] of each row; BARE: of numbers times 2^-126."""
    scale = taken(word[:, None], group + (HALF * FORM.groups if FORM.planes == 1 else 0), SCALE)
    if BARE:  # times 2^126: none is above 2, so none overflows, and 0 is 2^-1
        return numbers * _spread(((scale + 126) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True), numbers, FORM)
    else:
        return _times(numbers, number(scale, FORM, FAST), FORM)


@triton.jit
@no_type_check
def _groups(values, matrix, FORM: tl.constexpr):
    """`[1, GROUPS]`: 0, 1 and so on, as the result of a load that loads nothing; 0 if there is one.

    Triton brings numbers into the layout of a product before they are scaled only where they are made of loads and
    constants. A range is neither: with one, weights pass through shared memory once more, between two barriers.
    """
    if FORM.groups == 1:
        return 0
    else:
        group = tl.arange(0, FORM.groups)[None, :]
        nowhere = values.to(tl.pointer_type(tl.int32), bitcast=True) + group
        return tl.load(nowhere, mask=matrix + group < 0, other=group)


@triton.jit
@no_type_check
def _read_back(numbers, stored, matrix, row, start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """Columns of numbers less their zero points and times their scales, which lie in rows."""
    column = (start + tl.arange(0, FORM.groups) * FORM.tile_columns)[None, :]
    row = row[:, None]
    held = (row < ROWS) & (column < COLUMNS)
    if FORM.zero_point:
        zero = grid(stored[2], matrix, row, column, held, ROWS, COLUMNS, FORM)
        numbers = numbers - _spread(zero.to(numbers.dtype), numbers, FORM)
    scale = grid(stored[1], matrix, row, column, held, ROWS, COLUMNS, FORM)
    return _times(numbers, number(scale, FORM, False), FORM)


@triton.jit
@no_type_check
def _times(numbers, scale, FORM: tl.constexpr):
    """Half a block of numbers, or a block, times the scale of each group `[N, GROUPS]` in float32."""
    if FORM.scale == "float" or numbers.dtype == tl.float16:
        return (numbers.to(tl.float32) * _spread(scale, numbers, FORM)).to(numbers.dtype)
    else:  # exact: numbers of 4 bits or 8 with powers of two, or 2 significant bits with 4
        return numbers * _spread(scale.to(numbers.dtype), numbers, FORM)


@triton.jit
@no_type_check
def _spread(values, like, FORM: tl.constexpr):
    """`[N, GROUPS]` at each of the group's columns."""
    GROUPS: tl.constexpr = FORM.groups
    wide = tl.broadcast_to(values[:, :, None], [values.shape[0], GROUPS, FORM.width // GROUPS])
    return tl.reshape(wide, like.shape)
