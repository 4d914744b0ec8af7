"""A consumer's part of a tile of FP8 codes on Hopper: half of the rows times all weights.

The tensor core keeps 14 bits of a sum of FP8 products, so sums of 128 of them are scaled and added in float32
(DeepSeek-V3, arXiv:2412.19437, 3.3.2). Here rows of tokens are the M of the instruction: a thread then holds two rows,
and two scales of rows, where as N it would hold 32. It also holds a row's 128 columns with three neighbours, which
round them to codes for the next product.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from moesaic.kernels.coded_scales import read_scale, scale_of_rows, scales_of_blocks
from moesaic.kernels.hopper_emit import emit
from moesaic.kernels.hopper_form import TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.hopper_queue import announce_stored


@gluon.jit
@no_type_check
def multiply_codes(
    product,
    where,
    before,
    step,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Half WHO of a tile's rows; returns the number of the step after it."""
    output, operands, barriers, epilogue, task = product
    stages, late, _ = barriers
    control, width, _, steps = task
    row, count, expert, column = where
    mine = (row + WHO * (TILE_ROWS // 2), count - WHO * (TILE_ROWS // 2), expert, column)
    if mine[1] > 0:
        first, second = _multiply(operands, stages, late, epilogue, mine, width, steps, step, WHO, FORM)
        announce_stored(control, before, FORM)
        emit(first, second, output, mine, epilogue, width, EXPRESSION, PER_EXPERT, FORM)
    else:
        _pass(stages, step, steps, FORM)
        announce_stored(control, before, FORM)
    return step + steps


@gluon.jit
@no_type_check
def _multiply(operands, stages, late, epilogue, where, width, steps, step, WHO: gl.constexpr, FORM: gl.constexpr):
    """Of 64 rows the sums with both halves of the weights, scaled: twice [64, 128]."""
    STAGES: gl.constexpr = FORM.pipeline.stages
    SKEW: gl.constexpr = FORM.pipeline.skew
    ROWS: gl.constexpr = TILE_ROWS // 2
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    a, b, c = operands
    ready, free = stages
    dtype: gl.constexpr = a.dtype
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * WEIGHT_ROWS, FORM.depth], dtype)
    weights = a._reinterpret(dtype, [2 * STAGES, 2 * WEIGHT_ROWS, FORM.depth], wide)  # noqa: SLF001
    row, count, expert, column = where
    row_scales, weight_scales = epilogue[2]
    zero = gl.zeros((ROWS, 2 * WEIGHT_ROWS), gl.float32, mma)
    first, second = zero, zero
    block, block2 = scales_of_blocks(weight_scales, expert, column, width, steps, FORM)
    for k in range(steps):
        s = (step + k) % STAGES
        scale, scale2 = 1.0, 1.0
        if FORM.weight_blocks:
            scale = read_scale(gl.load(block + k), FORM)
            scale2 = read_scale(gl.load(block2 + k), FORM)
        mbarrier.wait(ready.index(s), ((step + k) // STAGES) & 1)
        if FORM.row_groups:
            beside = c.index(s).slice(WHO * ROWS, ROWS, dim=1).permute((1, 0)).load(mma)
            scale, scale2 = beside * scale, beside * scale2
        tokens = b.index(s).slice(WHO * ROWS, ROWS)
        part = warpgroup_mma(tokens, weights.index(2 * s).permute((1, 0)), zero, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(num_outstanding=0, deps=(part,))
        first = _add(first, part, scale)
        # The part before, which is done with, names the registers to multiply into: others would be too many.
        part = warpgroup_mma(tokens, weights.index(2 * s + 1).permute((1, 0)), part, use_acc=False, is_async=True)
        part = warpgroup_mma_wait(num_outstanding=0, deps=(part,))
        mbarrier.arrive(free.index(s), count=1)
        if WHO == 0:
            mbarrier.arrive(late, count=1, pred=step + k == gl.minimum(SKEW, steps - 1))
        second = _add(second, part, scale2)
    if not FORM.row_groups:
        m = gl.arange(0, ROWS, layout=gl.SliceLayout(1, mma))
        whole = gl.load(row_scales + row + m, mask=m < count, other=0.0)[:, None]
        first, second = first * whole, second * whole
    if not FORM.weight_blocks:
        first *= scale_of_rows(weight_scales, expert, column, width, 0, mma, FORM)
        second *= scale_of_rows(weight_scales, expert, column, width, 1, mma, FORM)
    return first, second


@gluon.jit
@no_type_check
def _add(sums, part, scale):
    """The sums with a part, scaled. Written out, or the compiler moves it behind the next product and spills."""
    return gl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [part, scale, sums], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
@no_type_check
def _pass(stages, step, steps, FORM: gl.constexpr):
    """A tile of which this consumer has no rows."""
    STAGES: gl.constexpr = FORM.pipeline.stages
    ready, free = stages
    for k in range(steps):
        s = (step + k) % STAGES
        mbarrier.wait(ready.index(s), ((step + k) // STAGES) & 1)
        mbarrier.arrive(free.index(s), count=1)
