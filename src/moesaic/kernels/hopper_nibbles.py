"""A consumer's part of a tile of 4-bit weights on Hopper: codes become numbers in the registers of wgmma.

Weights are the instruction's M, which may come from registers: a thread reads its codes and makes bfloat16 numbers of
them, times the scales of their groups, for 64 columns at a time while it multiplies the 64 before.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from moesaic.kernels.hopper_finish import finish
from moesaic.kernels.hopper_form import SPARE_ROWS, TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.hopper_queue import announce_stored
from moesaic.kernels.nibble_numbers import half_of
from moesaic.kernels.nibble_scales import spread_scales, words_of


@gluon.jit
@no_type_check
def multiply_nibbles(
    product,
    where,
    before,
    step,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Half WHO of a tile's weights, as many columns as its rows need; returns the number of the step after it."""
    if FORM.rows == SPARE_ROWS:
        _multiply(product, where, before, step, SPARE_ROWS, WHO, EXPRESSION, PER_EXPERT, FORM)
    elif where[1] > TILE_ROWS // 2:
        _multiply(product, where, before, step, TILE_ROWS, WHO, EXPRESSION, PER_EXPERT, FORM)
    elif where[1] > SPARE_ROWS:
        _multiply(product, where, before, step, TILE_ROWS // 2, WHO, EXPRESSION, PER_EXPERT, FORM)
    else:
        _multiply(product, where, before, step, SPARE_ROWS, WHO, EXPRESSION, PER_EXPERT, FORM)
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
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    held: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    a, b, _, boxes = operands
    ready, free = stages
    WHOLE: gl.constexpr = FORM.code == "int4"
    BARE: gl.constexpr = FORM.bare
    first = gl.zeros((WEIGHT_ROWS, N), gl.float32, mma)
    second = gl.zeros((WEIGHT_ROWS, N), gl.float32, mma)
    for k in range(steps):
        s = (step + k) % STAGES
        mbarrier.wait(ready.index(s), ((step + k) // STAGES) & 1)
        words = words_of(boxes, s, False, WHO, held, FORM)
        words2 = words_of(boxes, s, True, WHO, held, FORM)
        left = b.index(2 * s).slice(0, N).permute((1, 0))
        right = b.index(2 * s + 1).slice(0, N).permute((1, 0))
        # While a product runs, the next codes become numbers. None is carried into the next step: the compiler would
        # wait for each of its instructions.
        codes = a.index(4 * s + 2 * WHO).load(held)
        low = half_of(codes, False, WHOLE, BARE) * spread_scales(words, 0, held, FORM)
        first = warpgroup_mma(low, left, first, is_async=True)
        if WHO == 0:
            mbarrier.arrive(late, count=1, pred=step + k == gl.minimum(SKEW, steps - 1))
        high = half_of(codes, True, WHOLE, BARE) * spread_scales(words, 1, held, FORM)
        first = warpgroup_mma_wait(num_outstanding=0, deps=(first,))
        first = warpgroup_mma(high, right, first, is_async=True)
        codes = a.index(4 * s + 2 * WHO + 1).load(held)
        low = half_of(codes, False, WHOLE, BARE) * spread_scales(words2, 0, held, FORM)
        first = warpgroup_mma_wait(num_outstanding=0, deps=(first,))
        second = warpgroup_mma(low, left, second, is_async=True)
        high = half_of(codes, True, WHOLE, BARE) * spread_scales(words2, 1, held, FORM)
        second = warpgroup_mma_wait(num_outstanding=0, deps=(second,))
        second = warpgroup_mma(high, right, second, is_async=True)
        second = warpgroup_mma_wait(num_outstanding=0, deps=(second,))
        mbarrier.arrive(free.index(s), count=1)
    if FORM.whole:
        matrix = where[2].to(gl.int64) * 2 if FORM.gated else where[2].to(gl.int64)
        first *= gl.load(epilogue[2] + matrix) * FORM.lacking
        second *= gl.load(epilogue[2] + matrix + (1 if FORM.gated else 0)) * FORM.lacking
    announce_stored(control, before, FORM)
    finish(first, second, output, where, epilogue, width, 0, WHO, EXPRESSION, PER_EXPERT, FORM)
