"""What a consumer of a grouped product on Hopper does with its sums: bias, activation, and the store."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from moesaic.kernels.activation_expressions import evaluate
from moesaic.kernels.hopper_form import WEIGHT_ROWS


@gluon.jit
@no_type_check
def finish(
    first,
    second,
    output,
    where,
    epilogue,
    width,
    AT: gl.constexpr,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Bias, activation and store of one consumer's sums, twice [64, N] in float32, for the tile's rows from AT on."""
    GATED: gl.constexpr = FORM.gated
    out_desc, stage = output
    row, count, expert, column = where
    bias, constants = epilogue[0], epilogue[1]
    pieces = gl.cdiv(count, out_desc.block_type.shape[0])
    if GATED:
        first_column = column * (2 * WEIGHT_ROWS) + WHO * WEIGHT_ROWS
    else:
        first_column = column * (4 * WEIGHT_ROWS) + WHO * (2 * WEIGHT_ROWS)
    first, second = biased(first, second, bias, expert, column, width, WHO, FORM)
    dtype: gl.constexpr = out_desc.dtype
    STAGED: gl.constexpr = FORM.pipeline.staged
    if GATED:
        values = evaluate(EXPRESSION, (first, second), constants, PER_EXPERT, expert).to(dtype)
        _store(values, out_desc, stage, row, first_column, pieces, AT, STAGED)
    else:
        if EXPRESSION is not None:
            first = evaluate(EXPRESSION, (first,), constants, PER_EXPERT, expert)
            second = evaluate(EXPRESSION, (second,), constants, PER_EXPERT, expert)
        _store(first.to(dtype), out_desc, stage, row, first_column, pieces, AT, STAGED)
        _store(second.to(dtype), out_desc, stage, row, first_column + WEIGHT_ROWS, pieces, AT, STAGED)


@gluon.jit
@no_type_check
def biased(first, second, bias, expert, column, width, WHO: gl.constexpr, FORM: gl.constexpr):
    """Sums of gate and up, or of neighbouring columns, with the bias of their columns."""
    if FORM.bias:
        if FORM.gated:
            columns = width // 2
            m = column * (2 * WEIGHT_ROWS) + WHO * WEIGHT_ROWS
            beside = columns
        else:
            columns = width
            m = column * (4 * WEIGHT_ROWS) + WHO * (2 * WEIGHT_ROWS)
            beside = WEIGHT_ROWS
        m += gl.arange(0, WEIGHT_ROWS, layout=gl.SliceLayout(1, first.type.layout))
        of = bias + expert.to(gl.int64) * width + m
        first += gl.load(of, mask=m < columns, other=0.0).to(gl.float32)[:, None]
        there = m < columns if FORM.gated else m + WEIGHT_ROWS < columns
        second += gl.load(of + beside, mask=there, other=0.0).to(gl.float32)[:, None]
    return first, second


@gluon.jit
@no_type_check
def _store(values, out_desc, stage, row, column, pieces, AT: gl.constexpr, STAGED: gl.constexpr):
    """Values [64 columns, N rows] to rows `row` + AT and up: as many pieces as there are, STAGED at a time."""
    N: gl.constexpr = values.shape[1]
    if N > STAGED:
        left, right = values.reshape([WEIGHT_ROWS, 2, N // 2]).permute((0, 2, 1)).split()
        _store(left, out_desc, stage, row, column, pieces, AT, STAGED)
        _store(right, out_desc, stage, row, column, pieces, AT + N // 2, STAGED)
    else:
        tma.store_wait(pendings=0)  # what was stored before has left the stage
        stage.slice(0, N).permute((1, 0)).store(values)
        fence_async_shared()
        PIECE: gl.constexpr = out_desc.block_type.shape[0]
        for n in gl.static_range(N // PIECE):
            if AT // PIECE + n < pieces:
                piece = stage.slice(n * PIECE, PIECE)
                tma.async_copy_shared_to_global(out_desc, [row + AT + n * PIECE, column], piece)
