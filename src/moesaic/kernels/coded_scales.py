"""The scales of a grouped product of FP8 codes on Hopper, and how a consumer reads those of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final, no_type_check

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from moesaic.kernels.hopper_form import WEIGHT_ROWS


@final
@dataclass(frozen=True, eq=False)
class Scales:
    """Of both operands. `rows`: float32, [groups of 128 columns, P or more] or [P]. `weights`: [L, blocks of 128 rows,
    of 128 columns], or one a row or a matrix; any float, or E8M0 as bytes. Gate and up are matrices of their own.

    `out`: where the scales of what comes out go if that is codes, [groups of 128 columns, P or more], rounded as
    `RoundedForm.scale` says in `recode`.
    """

    rows: Tensor
    weights: Tensor
    row_groups: bool
    weight_blocks: bool
    weight_rows: bool
    out: Tensor | None = None
    recode: str = ""


@gluon.jit
@no_type_check
def scales_of_blocks(scales, expert, column, width, steps, FORM: gl.constexpr):
    """Where the scales of both halves begin: a column tile is 128 columns of gate and of up, or 256 of all."""
    if FORM.gated:
        high = (width // 2 + 127) // 128
        block = scales + (expert.to(gl.int64) * (2 * high) + column) * steps
        return block, block + high * steps
    else:
        high = (width + 127) // 128
        matrix = expert.to(gl.int64) * high
        block = scales + (matrix + 2 * column) * steps
        return block, scales + (matrix + gl.minimum(2 * column + 1, high - 1)) * steps


@gluon.jit
@no_type_check
def scale_of_rows(scales, expert, column, width, HALF: gl.constexpr, mma: gl.constexpr, FORM: gl.constexpr):
    """Of each row of weights in half HALF its scale, or that of its matrix."""
    matrix = expert.to(gl.int64) * 2 + HALF if FORM.gated else expert.to(gl.int64)
    if FORM.weight_rows:
        n = gl.arange(0, 2 * WEIGHT_ROWS, layout=gl.SliceLayout(0, mma))
        if FORM.gated:
            height = width // 2
            n += column * (2 * WEIGHT_ROWS)
        else:
            height = width
            n += (2 * column + HALF) * (2 * WEIGHT_ROWS)
        return read_scale(gl.load(scales + matrix * height + n, mask=n < height, other=0), FORM)[None, :]
    else:
        return read_scale(gl.load(scales + matrix), FORM)


@gluon.jit
@no_type_check
def read_scale(scale, FORM: gl.constexpr):
    """A scale in float32; E8M0 as its byte, of which 0 is 2^-127 and 255 not a number."""
    if FORM.powers:
        bits = scale.to(gl.int32)
        bits = gl.where(bits == 255, 0x7FC00000, gl.where(bits == 0, 0x00400000, bits << 23))
        return bits.to(gl.float32, bitcast=True)
    else:
        return scale.to(gl.float32)
