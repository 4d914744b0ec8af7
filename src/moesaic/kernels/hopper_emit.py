"""What a consumer of FP8 codes on Hopper does with its sums: bias, activation, codes again if wanted, the store."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from moesaic.kernels.activation_expressions import evaluate
from moesaic.kernels.hopper_form import SPARE_ROWS, TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.spread_codes import codes_of


@gluon.jit
@no_type_check
def emit(
    first,
    second,
    output,
    where,
    epilogue,
    width,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Sums, twice [64, 128], of one consumer's rows: gate and up of 128 columns, or 256 columns."""
    row, count, expert, column = where
    constants = epilogue[1]
    COLUMNS: gl.constexpr = 2 * WEIGHT_ROWS
    if FORM.gated:
        columns = width // 2
        at = column * COLUMNS
        first = _biased(first, epilogue[0], expert, at, at, columns, width, FORM)
        second = _biased(second, epilogue[0], expert, at, columns + at, columns, width, FORM)
        values = evaluate(EXPRESSION, (first, second), constants, PER_EXPERT, expert)
        _store(values, output, row, count, at, columns, epilogue, FORM)
    else:
        at = column * (2 * COLUMNS)
        first = _biased(first, epilogue[0], expert, at, at, width, width, FORM)
        second = _biased(second, epilogue[0], expert, at + COLUMNS, at + COLUMNS, width, width, FORM)
        if EXPRESSION is not None:
            first = evaluate(EXPRESSION, (first,), constants, PER_EXPERT, expert)
            second = evaluate(EXPRESSION, (second,), constants, PER_EXPERT, expert)
        _store(first, output, row, count, at, width, epilogue, FORM)
        _store(second, output, row, count, at + COLUMNS, width, epilogue, FORM)


@gluon.jit
@no_type_check
def _biased(sums, bias, expert, at, place, columns, width, FORM: gl.constexpr):
    if FORM.bias:
        n = gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, sums.type.layout))
        term = gl.load(bias + expert.to(gl.int64) * width + place + n, mask=at + n < columns, other=0.0)
        sums += term.to(gl.float32)[None, :]
    return sums


@gluon.jit
@no_type_check
def _store(values, output, row, count, at, columns, epilogue, FORM: gl.constexpr):
    """Values [64, 128] to columns `at` and up of the rows, in pieces of 32 rows, as many as there are."""
    out_desc, stage = output
    dtype: gl.constexpr = out_desc.dtype
    HALF: gl.constexpr = TILE_ROWS // 2
    if FORM.recodes:
        SCALE: gl.constexpr = FORM.recode  # triton 3.6 passes no text on that is an attribute
        out_scales, stride = epilogue[3]
        layout: gl.constexpr = values.type.layout
        if not FORM.whole:
            n = at + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, layout))
            values = gl.where(n[None, :] < columns, values, 0.0)  # what lies beyond takes part in no scale
        codes, scale = codes_of(values, SCALE)
        m = gl.arange(0, HALF, layout=gl.SliceLayout(1, layout))
        to = out_scales + (at // values.shape[1]).to(gl.int64) * stride + row + m
        gl.store(to, scale, mask=(m < count) & (at < columns))
        _copy(codes, out_desc, stage, row, count, at)
    else:
        left, right = values.to(dtype).reshape([HALF, 2, WEIGHT_ROWS]).permute((0, 2, 1)).split()
        _copy(left, out_desc, stage, row, count, at)
        _copy(right, out_desc, stage, row, count, at + WEIGHT_ROWS)


@gluon.jit
@no_type_check
def _copy(values, out_desc, stage, row, count, at):
    tma.store_wait(pendings=0)  # what was stored before has left the stage
    stage.store(values)
    fence_async_shared()
    for n in gl.static_range(values.shape[0] // SPARE_ROWS):
        if n * SPARE_ROWS < count:
            piece = stage.slice(n * SPARE_ROWS, SPARE_ROWS)
            tma.async_copy_shared_to_global(out_desc, [row + n * SPARE_ROWS, at], piece)
