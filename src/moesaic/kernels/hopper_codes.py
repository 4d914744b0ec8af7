"""The consumers of a grouped product of FP8 codes on Hopper: each multiplies half of a tile's rows and all weights.

The tensor core keeps 14 bits of a sum of FP8 products, so sums of 128 of them are scaled and added in float32
(DeepSeek-V3, arXiv:2412.19437, 3.3.2). Here rows of tokens are the M of the instruction: a thread then holds two rows,
and two scales of rows, where as N it would hold 32. It also holds a row's 128 columns with three neighbours, which
round them to codes for the next product.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from moesaic.kernels.hopper_emit import emit
from moesaic.kernels.hopper_form import TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.hopper_queue import announce_stored, receive


@gluon.jit
@no_type_check
def consume_codes(
    output,
    operands,
    stages,
    late,
    queue,
    epilogue,
    control,
    width,
    depth,
    WHO: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    """Half WHO of every tile's rows."""
    steps = gl.cdiv(depth, FORM.depth)
    step = 0
    i = 0
    before = -1
    tile, row, count, expert, column = receive(i, queue)
    if WHO == 1:
        if count > 0:  # a program without a tile would wait for ever
            mbarrier.wait(late, 0)
    while count > 0:
        where = (row + WHO * (TILE_ROWS // 2), count - WHO * (TILE_ROWS // 2), expert, column)
        if where[1] > 0:
            first, second = _multiply(operands, stages, late, epilogue, where, width, steps, step, WHO, FORM)
            announce_stored(control, before, FORM.announce)
            emit(first, second, output, where, epilogue, width, EXPRESSION, PER_EXPERT, FORM)
        else:
            _pass(stages, step, steps, FORM)
            announce_stored(control, before, FORM.announce)
        step += steps
        before = tile
        i += 1
        tile, row, count, expert, column = receive(i, queue)
    announce_stored(control, before, FORM.announce)
    tma.store_wait(pendings=0)


@gluon.jit
@no_type_check
def _multiply(operands, stages, late, epilogue, where, width, steps, step, WHO: gl.constexpr, FORM: gl.constexpr):
    """Of 64 rows the sums with both halves of the weights, scaled: twice [64, 128]."""
    STAGES: gl.constexpr = FORM.stages
    SKEW: gl.constexpr = FORM.skew
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
    block, block2 = _blocks(weight_scales, expert, column, width, steps, FORM)
    for k in range(steps):
        s = (step + k) % STAGES
        scale, scale2 = 1.0, 1.0
        if FORM.weight_blocks:
            scale = _number(gl.load(block + k), FORM)
            scale2 = _number(gl.load(block2 + k), FORM)
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
        first *= _scale_of_rows(weight_scales, expert, column, width, 0, mma, FORM)
        second *= _scale_of_rows(weight_scales, expert, column, width, 1, mma, FORM)
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
    STAGES: gl.constexpr = FORM.stages
    ready, free = stages
    for k in range(steps):
        s = (step + k) % STAGES
        mbarrier.wait(ready.index(s), ((step + k) // STAGES) & 1)
        mbarrier.arrive(free.index(s), count=1)


@gluon.jit
@no_type_check
def _blocks(scales, expert, column, width, steps, FORM: gl.constexpr):
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
def _scale_of_rows(scales, expert, column, width, HALF: gl.constexpr, mma: gl.constexpr, FORM: gl.constexpr):
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
        return _number(gl.load(scales + matrix * height + n, mask=n < height, other=0), FORM)[None, :]
    else:
        return _number(gl.load(scales + matrix), FORM)


@gluon.jit
@no_type_check
def _number(scale, FORM: gl.constexpr):
    """A scale in float32; E8M0 as its byte, of which 0 is 2^-127 and 255 not a number."""
    if FORM.powers:
        bits = scale.to(gl.int32)
        bits = gl.where(bits == 255, 0x7FC00000, gl.where(bits == 0, 0x00400000, bits << 23))
        return bits.to(gl.float32, bitcast=True)
    else:
        return scale.to(gl.float32)
