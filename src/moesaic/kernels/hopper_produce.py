"""The producer of a grouped product on Hopper: one block of both operands after another into shared memory."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from moesaic.kernels.hopper_form import PIECES, SPARE_ROWS, TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.hopper_queue import await_stored, find_tile, publish


@gluon.jit
@no_type_check
def produce(source, task, operands, barriers, COUNTER: gl.constexpr, FORM: gl.constexpr):
    """Copies the operands of one tile after another; the next tile is drawn and looked up in small moves, one in each
    of a tile's first steps, so that no chain of loads stalls the ring. The last operand is the tile's spare rows, or
    the scales of its rows if those are codes.
    """
    GATHER: gl.constexpr = FORM.gather
    GATED: gl.constexpr = FORM.gated
    STAGES: gl.constexpr = FORM.pipeline.stages
    BLOCK_DEPTH: gl.constexpr = FORM.depth
    HALVES: gl.constexpr = FORM.halves
    COUNT: gl.constexpr = FORM.pieces
    MOST: gl.constexpr = COUNT + 1 if FORM.spares else COUNT
    rows_desc, rows, row_stride, pairs, scales_desc, weights_desc = source
    tiles, max_tiles, control, width, depth = task
    a, b, c = operands
    stages, _, queue = barriers
    ready, free = stages
    columns = width // 2 if GATED else width
    per_tile: gl.constexpr = 2 * WEIGHT_ROWS if GATED else 4 * WEIGHT_ROWS
    num_n = gl.cdiv(columns, per_tile)
    total = gl.load(control) * num_n
    steps = gl.cdiv(depth, BLOCK_DEPTH)
    ticket = gl.program_id(0)
    tile, row, count, expert, column = find_tile(tiles, max_tiles, ticket, gl.maximum(total, 1), num_n)
    if GATHER:
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        local = gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, layout))
        spare = TILE_ROWS + gl.arange(0, SPARE_ROWS, layout=gl.SliceLayout(1, layout))
        inner = gl.arange(0, BLOCK_DEPTH, layout=gl.SliceLayout(0, layout))
        token = gl.load(pairs + row + local, mask=local < count, other=0) // GATHER
        token2 = gl.load(pairs + row + spare, mask=spare < count, other=0) // GATHER
    step = 0
    i = 0
    while ticket < total:
        publish(tile, row, count, expert, column, i, queue)
        i += 1
        first = row
        pieces = gl.cdiv(count, SPARE_ROWS)
        at = expert * width + column * per_tile
        await_stored(control, tile, FORM.after)
        if GATHER:
            many = pieces > PIECES
            mask = (local < pieces * SPARE_ROWS)[:, None] & (inner < BLOCK_DEPTH)[None, :]
            at_rows = rows + token[:, None].to(gl.int64) * row_stride + inner[None, :]
            at_rows2 = rows + token2[:, None].to(gl.int64) * row_stride + inner[None, :]
        for k in range(steps):
            s = step % STAGES
            mbarrier.wait(free.index(s), ((step // STAGES) & 1) ^ 1)
            bar = ready.index(s)
            if GATHER:
                mbarrier.expect(bar, 4 * weights_desc.block_type.nbytes)
            else:
                always: gl.constexpr = 4 * weights_desc.block_type.nbytes
                beside: gl.constexpr = scales_desc.block_type.nbytes if FORM.row_groups else 0
                for n in gl.static_range(MOST):
                    mbarrier.expect(
                        bar, always + beside + (n + 1) * HALVES * rows_desc.block_type.nbytes, pred=pieces == n + 1
                    )
            for box in gl.static_range(4):
                # Gated: gate and up of the first consumer, gate and up of the second; shared: all of gate, all of up.
                if GATED and FORM.shared:
                    begin = at + (box % 2) * WEIGHT_ROWS + (box // 2) * columns
                elif GATED:
                    begin = at + (box // 2) * WEIGHT_ROWS + (box % 2) * columns
                else:
                    begin = at + box * WEIGHT_ROWS
                tma.async_copy_global_to_shared(weights_desc, [begin, k * FORM.weight_depth], bar, a.index(4 * s + box))
            if GATHER:
                async_copy.async_copy_global_to_shared(b.index(s), at_rows + k * BLOCK_DEPTH, mask=mask)
                if many:
                    async_copy.async_copy_global_to_shared(c.index(s), at_rows2 + k * BLOCK_DEPTH)
                async_copy.mbarrier_arrive(bar, increment_count=False)
            else:
                for half in gl.static_range(HALVES):
                    quarters = b.index(HALVES * s + half)
                    for n in gl.static_range(COUNT):
                        tma.async_copy_global_to_shared(
                            rows_desc,
                            [first + n * SPARE_ROWS, k * BLOCK_DEPTH + half * (BLOCK_DEPTH // HALVES)],
                            bar,
                            quarters.slice(n * SPARE_ROWS, SPARE_ROWS),
                            pred=pieces > n,
                        )
                if FORM.row_groups:
                    tma.async_copy_global_to_shared(scales_desc, [k, first], bar, c.index(s))
                if FORM.spares:
                    tma.async_copy_global_to_shared(
                        rows_desc, [first + TILE_ROWS, k * BLOCK_DEPTH], bar, c.index(s), pred=pieces > PIECES
                    )
            step += 1
            if k == gl.minimum(1, steps - 1):
                ticket = gl.num_programs(0) + gl.atomic_add(control + COUNTER, 1, sem="relaxed")
            if k == gl.minimum(3, steps - 1):
                tile, row, count, expert, column = find_tile(tiles, max_tiles, ticket, total, num_n)
            if GATHER:
                if k == gl.minimum(4, steps - 1):
                    token = gl.load(pairs + row + local, mask=local < count, other=0) // GATHER
                    token2 = gl.load(pairs + row + spare, mask=spare < count, other=0) // GATHER
    publish(tile, row, 0, expert, column, i, queue)
