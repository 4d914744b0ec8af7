"""What a consumer of split rows on Hopper does with the sums of a first product: they are split for the second."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from moesaic.kernels.activation_expressions import evaluate
from moesaic.kernels.hopper_finish import biased
from moesaic.kernels.hopper_form import WEIGHT_ROWS
from moesaic.kernels.split_form import BLOCK_COLUMNS, PIECE_ROWS
from moesaic.kernels.split_rows import parts_of, powers


@gluon.jit
@no_type_check
def emit_split(
    first,
    second,
    output,
    where,
    epilogue,
    width,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Sums, twice [64, N]: gate and up of 64 columns, or 128 columns."""
    column, expert, constants = where[3], where[2], epilogue[1]
    first, second = biased(first, second, epilogue[0], expert, column, width, WHO, FORM)
    if FORM.gated:
        at = column * (2 * WEIGHT_ROWS) + WHO * WEIGHT_ROWS
        values = evaluate(EXPRESSION, (first, second), constants, PER_EXPERT, expert)
        _store(values, output, where, at, width // 2, epilogue[2], FORM)
    else:
        at = column * (4 * WEIGHT_ROWS) + WHO * (2 * WEIGHT_ROWS)
        if EXPRESSION is not None:
            first = evaluate(EXPRESSION, (first,), constants, PER_EXPERT, expert)
            second = evaluate(EXPRESSION, (second,), constants, PER_EXPERT, expert)
        _store(first, output, where, at, width, epilogue[2], FORM)
        _store(second, output, where, at + WEIGHT_ROWS, width, epilogue[2], FORM)


@gluon.jit
@no_type_check
def _store(values, output, where, at, columns, beside, FORM: gl.constexpr):
    """Values [64 columns from `at` on, N rows]; those of columns that are not there are zeros."""
    N: gl.constexpr = values.shape[1]
    layout: gl.constexpr = values.type.layout
    out_desc, stage = output
    row, count, _, _ = where
    numbers, stride = beside
    if not FORM.whole:
        m = at + gl.arange(0, WEIGHT_ROWS, layout=gl.SliceLayout(1, layout))
        values = gl.where(m[:, None] < columns, values, 0.0)
    size = gl.abs(values)
    finite = size < float("inf")
    power, inverse = powers(gl.max(gl.where(finite, size, 0.0), 0))
    high, low = parts_of(values, finite, inverse[None, :])
    n = gl.arange(0, N, layout=gl.SliceLayout(0, layout))
    half = at // WEIGHT_ROWS
    to = numbers + (half // 2 * FORM.beside + half % 2).to(gl.int64) * stride + row + n
    there = (n < count) & (half // 2 * BLOCK_COLUMNS < columns)
    gl.store(to, power, mask=there)
    if FORM.beside > 2:
        total = gl.sum(high + low, 0) * 0.015625 * power
        gl.store(to + 2 * stride, total, mask=there)
    tma.store_wait(pendings=0)  # what was stored before has left the stage
    stage.slice(0, N).permute((1, 0)).store(high.to(gl.float8e4nv))
    stage.slice(FORM.rows, N).permute((1, 0)).store(low.to(gl.float8e4nv))
    fence_async_shared()
    to = half // 2 * (2 * BLOCK_COLUMNS) + half % 2 * WEIGHT_ROWS
    for piece in gl.static_range(N // PIECE_ROWS):
        if piece * PIECE_ROWS < count:
            place = row + piece * PIECE_ROWS
            tma.async_copy_shared_to_global(out_desc, [place, to], stage.slice(piece * PIECE_ROWS, PIECE_ROWS))
            beneath = stage.slice(FORM.rows + piece * PIECE_ROWS, PIECE_ROWS)
            tma.async_copy_shared_to_global(out_desc, [place, to + BLOCK_COLUMNS], beneath)
