"""What stands beside the codes of a block of stored weights: where it lies, in rows or in boxes, and as numbers.

A row's scales in a box are read as words of 32 bits, the narrowest that Triton copies ahead of a loop over blocks. A
load that is not copied ahead is waited for in each block, all the way to memory, since the next box lies elsewhere.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.stored_codes import e4m3, e8m0


@triton.jit
@no_type_check
def scale_of_columns(values, matrix, row, start, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """`[N]` in float32: of each row in `row` the scale that its 128 columns from `start` on share."""
    if FORM.planes == 0:
        return number(grid(values, matrix, row, start, row < ROWS, ROWS, COLUMNS, FORM), FORM, False)
    elif values.dtype.element_ty.primitive_bitwidth == 32:
        return words_of(values, matrix, row, start, 0, ROWS, COLUMNS, FORM).to(tl.float32, bitcast=True)
    else:  # two rows in a word
        N: tl.constexpr = row.shape[0]
        even, _ = tl.split(tl.reshape(row, [N // 2, 2]))
        word = words_of(values, matrix, even, start, 0, ROWS, COLUMNS, FORM)
        first, second = taken(word, 0, values.dtype.element_ty), taken(word, 1, values.dtype.element_ty)
        return tl.reshape(tl.join(first, second), [N]).to(tl.float32)


@triton.jit
@no_type_check
def grid(values, matrix, row, column, mask, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr):
    """What stands beside the codes at (`row`, `column`), of values in rows."""
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
def words_of(
    values, matrix, row, start, PLANE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr
):
    """`[N]`: of each row the word with its scales of a block in one of their planes; with one of 16 bits, of two."""
    BLOCKS: tl.constexpr = (COLUMNS + FORM.block - 1) // FORM.block
    BOXES: tl.constexpr = (ROWS + 63) // 64
    BITS: tl.constexpr = values.dtype.element_ty.primitive_bitwidth
    SIZE: tl.constexpr = FORM.block // FORM.tile_columns // FORM.planes * BITS // 8  # bytes of a row in a plane: 2 or 4
    WORDS: tl.constexpr = 64 * SIZE // 4
    BOX: tl.constexpr = FORM.planes * WORDS
    at = values.to(tl.pointer_type(tl.int32), bitcast=True) + matrix.to(tl.int64) * (BLOCKS * BOXES * BOX)
    at += start // FORM.block * (BOXES * BOX) + PLANE * WORDS
    # Of 32 bits, and the same for all steps: addresses of 64 would be kept in twice the registers.
    return tl.load(at + (row + (row & -64) * (FORM.planes - 1)) * SIZE // 4, mask=row < ROWS, other=0)


@triton.jit
@no_type_check
def taken(word, place, SCALE: tl.constexpr):
    """Number `place` of the scales in a word: bits of 8 in an integer, else a number."""
    BITS: tl.constexpr = SCALE.primitive_bitwidth
    if BITS == 32:
        return word.to(tl.float32, bitcast=True)
    elif BITS == 16:
        return (word >> place * BITS).to(tl.int16).to(SCALE, bitcast=True)
    else:
        return (word >> place * BITS) & 255


@triton.jit
@no_type_check
def number(scale, FORM: tl.constexpr, FAST: tl.constexpr):
    """A scale in float32."""
    if FORM.scale == "e8m0":
        return e8m0(scale)
    elif FORM.scale == "e4m3" and FAST:
        return scale.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    elif FORM.scale == "e4m3":
        return e4m3(scale).to(tl.float32)
    else:
        return scale.to(tl.float32)
