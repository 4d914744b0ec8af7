"""A consumer's part of a tile on Hopper: half of the weights, bfloat16 or float16, times all rows."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from moesaic.kernels.hopper_finish import finish
from moesaic.kernels.hopper_form import SPARE_ROWS, TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.hopper_queue import announce_stored


@gluon.jit
@no_type_check
def multiply_plain(
    product,
    where,
    before,
    step,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Half WHO of a tile's weights; returns the number of the step after it."""
    if where[1] > TILE_ROWS:
        step = _multiply(product, where, before, step, TILE_ROWS, True, WHO, EXPRESSION, PER_EXPERT, FORM)
    else:
        step = _multiply_few(product, where, before, step, WHO, EXPRESSION, PER_EXPERT, FORM)
    return step


@gluon.jit
@no_type_check
def _multiply_few(
    product,
    where,
    before,
    step,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """A tile of at most 128 rows, as wide as it must be."""
    if where[1] > TILE_ROWS // 2:
        step = _multiply(product, where, before, step, TILE_ROWS, False, WHO, EXPRESSION, PER_EXPERT, FORM)
    elif where[1] > SPARE_ROWS:
        step = _multiply(product, where, before, step, TILE_ROWS // 2, False, WHO, EXPRESSION, PER_EXPERT, FORM)
    else:
        step = _multiply(product, where, before, step, SPARE_ROWS, False, WHO, EXPRESSION, PER_EXPERT, FORM)
    return step


@gluon.jit
@no_type_check
def _multiply(
    product,
    where,
    before,
    step,
    N: gl.constexpr,
    MORE: gl.constexpr,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """One tile of N rows, with MORE up to 32 behind them; returns the number of the step after it."""
    output, operands, barriers, epilogue, task = product
    stages, late, _ = barriers
    control, width, _, steps = task
    BLOCK_DEPTH: gl.constexpr = FORM.depth
    STAGES: gl.constexpr = FORM.pipeline.stages
    SKEW: gl.constexpr = FORM.pipeline.skew
    dtype: gl.constexpr = output[0].dtype
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    few: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, SPARE_ROWS, 16]
    )
    wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * WEIGHT_ROWS, BLOCK_DEPTH], dtype)
    a, b, c = operands
    ready, free = stages
    weights = a._reinterpret(dtype, [2 * STAGES, 2 * WEIGHT_ROWS, BLOCK_DEPTH], wide)  # noqa: SLF001
    sums = gl.zeros((2 * WEIGHT_ROWS, N), gl.float32, mma)
    if MORE:
        sums2 = gl.zeros((2 * WEIGHT_ROWS, SPARE_ROWS), gl.float32, few)
    for k in range(steps):
        s = step % STAGES
        mbarrier.wait(ready.index(s), (step // STAGES) & 1)
        if FORM.gather > 0:
            fence_async_shared()  # cp.async writes through the generic proxy, wgmma reads through the other
        mine = weights.index(2 * s + WHO)
        sums = warpgroup_mma(mine, b.index(s).slice(0, N).permute((1, 0)), sums, is_async=True)
        # Step - 1 is done once no more than this step's products are outstanding: its stage is free.
        if MORE:
            sums2 = warpgroup_mma(mine, c.index(s).permute((1, 0)), sums2, is_async=True)
            sums, sums2 = warpgroup_mma_wait(num_outstanding=2, deps=(sums, sums2))
        else:
            sums = warpgroup_mma_wait(num_outstanding=1, deps=(sums,))
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
        if WHO == 0:
            mbarrier.arrive(late, count=1, pred=step == gl.minimum(SKEW, steps - 1))
        step += 1
    if MORE:
        sums, sums2 = warpgroup_mma_wait(num_outstanding=0, deps=(sums, sums2))
    else:
        sums = warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
    mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1)
    announce_stored(control, before, FORM)
    first, second = sums.reshape([2, WEIGHT_ROWS, N]).permute((1, 2, 0)).split()
    finish(first, second, output, where, epilogue, width, 0, WHO, EXPRESSION, PER_EXPERT, FORM)
    if MORE:
        first, second = sums2.reshape([2, WEIGHT_ROWS, SPARE_ROWS]).permute((1, 2, 0)).split()
        finish(first, second, output, where, epilogue, width, N, WHO, EXPRESSION, PER_EXPERT, FORM)
    return step
