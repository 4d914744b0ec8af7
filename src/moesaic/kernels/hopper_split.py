"""A consumer's part of a tile of 4-bit weights and split rows on Hopper: codes become E4M3 numbers in registers.

Each number of a row is two, which meet the same weights: the high parts of 8 rows and their low ones lie side by side
in one product, and are added behind it. Sums of the columns that share a scale are apart, so that scales are multiplied
with sums of 8 or 16 rows instead of with numbers.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from moesaic.kernels.hopper_finish import finish
from moesaic.kernels.hopper_form import WEIGHT_ROWS
from moesaic.kernels.hopper_queue import announce_stored
from moesaic.kernels.nibble_scales import words_of
from moesaic.kernels.split_emit import emit_split
from moesaic.kernels.split_form import PIECE_ROWS, SHARED_COLUMNS
from moesaic.kernels.split_numbers import numbers_in, scale_in


@gluon.jit
@no_type_check
def multiply_split(
    product,
    where,
    before,
    step,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Half WHO of a tile's weights, times as many rows as there are; returns the number of the step after it."""
    if where[1] > PIECE_ROWS:
        _multiply(product, where, before, step, 2 * PIECE_ROWS, WHO, EXPRESSION, PER_EXPERT, FORM)
    else:
        _multiply(product, where, before, step, PIECE_ROWS, WHO, EXPRESSION, PER_EXPERT, FORM)
    return step + product[4][3]  # its steps


@gluon.jit
@no_type_check
def _multiply(
    product,
    where,
    before,
    step,
    N: gl.constexpr,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """One tile of N rows."""
    output, operands, barriers, epilogue, task = product
    stages, late, _ = barriers
    control, width, _, steps = task
    STAGES: gl.constexpr = FORM.pipeline.stages
    SKEW: gl.constexpr = FORM.pipeline.skew
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32])
    a, b, c, boxes = operands
    ready, free = stages
    first = gl.zeros((WEIGHT_ROWS, N), gl.float32, mma)
    second = gl.zeros((WEIGHT_ROWS, N), gl.float32, mma)
    for k in range(steps):
        s = (step + k) % STAGES
        mbarrier.wait(ready.index(s), ((step + k) // STAGES) & 1)
        words = words_of(boxes, s, False, WHO, mma, FORM)[0]
        words2 = words_of(boxes, s, True, WHO, mma, FORM)[0]
        rows = b.index(s).slice(0, 2 * N).permute((1, 0))
        first = _add_box(first, a.index(4 * s + 2 * WHO), rows, words, c.index(s), N, mma, FORM)
        second = _add_box(second, a.index(4 * s + 2 * WHO + 1), rows, words2, c.index(s), N, mma, FORM)
        if WHO == 0:
            mbarrier.arrive(late, count=1, pred=step + k == gl.minimum(SKEW, steps - 1))
        mbarrier.arrive(free.index(s), count=1)
    first, second = first * FORM.lacking, second * FORM.lacking
    announce_stored(control, before, FORM)
    if FORM.splits:
        emit_split(first, second, output, where, epilogue, width, WHO, EXPRESSION, PER_EXPERT, FORM)
    else:
        finish(first, second, output, where, epilogue, width, 0, WHO, EXPRESSION, PER_EXPERT, FORM)


@gluon.constexpr_function
def _wide(N):
    """Of sums with both parts of N rows."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 2 * N, 32])


@gluon.jit
@no_type_check
def _add_box(sums, codes, rows, words, beside, N: gl.constexpr, mma: gl.constexpr, FORM: gl.constexpr):
    """The sums with those of 128 columns. Of 16 rows only one half of the columns is on its way at a time: more sums
    than 32 in a thread leave too few registers.
    """
    held: gl.constexpr = gl.DotOperandLayout(0, _wide(N), 4)
    taken = codes.load(held)
    low = _part(taken, rows, False, N, FORM)
    if N > PIECE_ROWS:
        low = _waited(low, 0)
        left = _scaled(low, words, beside, 0, N, mma, FORM)
        high = _waited(_part(taken, rows, True, N, FORM), 0)
    else:
        high = _part(taken, rows, True, N, FORM)
        low = _waited(low, 2 if FORM.group < SHARED_COLUMNS else 1)
        left = _scaled(low, words, beside, 0, N, mma, FORM)
        high = _waited(high, 0)
    right = _scaled(high, words, beside, 1, N, mma, FORM)
    if FORM.group > SHARED_COLUMNS:
        return sums + (left + right) * scale_in(words, 0, FORM)
    else:
        return sums + left + right


@gluon.jit
@no_type_check
def _part(taken, rows, HIGH: gl.constexpr, N: gl.constexpr, FORM: gl.constexpr):
    """The sums of 64 columns on their way: of 32 and 32 that share a scale, or twice of all."""
    held: gl.constexpr = gl.DotOperandLayout(0, _wide(N), 4)
    CODE: gl.constexpr = FORM.code  # triton 3.6 passes no text on that is an attribute
    WHOLE: gl.constexpr = CODE == "int4"
    AT: gl.constexpr = SHARED_COLUMNS if HIGH else 0
    numbers = numbers_in(taken, HIGH, WHOLE)
    if FORM.group < SHARED_COLUMNS:
        left, right = numbers.reshape([WEIGHT_ROWS, 2, 32]).permute((0, 2, 1)).split()
        left = gl.convert_layout(left, held, assert_trivial=True)
        right = gl.convert_layout(right, held, assert_trivial=True)
        return _product(left, rows, AT, N), _product(right, rows, AT + 32, N)
    else:
        part = _product(numbers, rows, AT, N)
        return part, part


@gluon.jit
@no_type_check
def _product(numbers, rows, AT: gl.constexpr, N: gl.constexpr):
    """Numbers times the columns from AT on of both parts of rows, [64, 2 N]."""
    COUNT: gl.constexpr = numbers.shape[1]
    sums = gl.zeros((WEIGHT_ROWS, 2 * N), gl.float32, _wide(N))
    return warpgroup_mma(numbers, rows.slice(AT, COUNT, dim=0), sums, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def _joined(part, N: gl.constexpr, mma: gl.constexpr):
    """The sums of high parts and those of low ones, which come after them by eights."""
    high, low = part.reshape([WEIGHT_ROWS, N // PIECE_ROWS, 2, PIECE_ROWS]).permute((0, 1, 3, 2)).split()
    return gl.convert_layout((high + low).reshape([WEIGHT_ROWS, N]), mma, assert_trivial=True)


@gluon.jit
@no_type_check
def _waited(part, LATER: gl.constexpr):
    """A part, done; so many products after it may still be on their way."""
    p, q = warpgroup_mma_wait(num_outstanding=LATER, deps=part)
    return p, q


@gluon.jit
@no_type_check
def _scaled(part, words, beside, H: gl.constexpr, N: gl.constexpr, mma: gl.constexpr, FORM: gl.constexpr):
    """The sums of 64 columns, half H of 128, times the powers of two of rows, and their scales if there are two."""
    power = beside.slice(H, 1).slice(0, N, dim=1).load(mma)
    first = _joined(part[0], N, mma)
    if FORM.group < SHARED_COLUMNS:
        second = _joined(part[1], N, mma)
        return (first * scale_in(words, 2 * H, FORM) + second * scale_in(words, 2 * H + 1, FORM)) * power
    else:
        sums = first * power - beside.slice(2 + H, 1).slice(0, N, dim=1).load(mma)
        return sums * scale_in(words, H, FORM) if FORM.group == SHARED_COLUMNS else sums
