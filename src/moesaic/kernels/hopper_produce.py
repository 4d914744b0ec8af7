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
    PIECE: gl.constexpr = FORM.piece
    COUNT: gl.constexpr = FORM.pieces
    ROW_DEPTH: gl.constexpr = FORM.row_depth
    MOST: gl.constexpr = COUNT + 1 if FORM.spares else COUNT
    rows_desc, rows, row_stride, pairs, scales_desc, weights_desc = source[:6]
    tiles, max_tiles, control, width, depth = task
    a, b, c = operands[:3]
    stages, _, queue = barriers
    ready, free = stages
    columns = width // 2 if GATED else width
    per_tile: gl.constexpr = 2 * WEIGHT_ROWS if GATED else 4 * WEIGHT_ROWS
    num_n = gl.cdiv(columns, per_tile)
    total = gl.load(control) * num_n
    steps = gl.cdiv(depth, BLOCK_DEPTH)
    ticket = gl.program_id(0)
    tile, row, count, expert, column = find_tile(
        tiles, max_tiles, ticket, gl.maximum(total, num_n), num_n, FORM.column_blocks
    )
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
        pieces = gl.cdiv(count, PIECE)
        at = expert * width + column * per_tile
        matrix, upright = expert, column  # the next tile's are found while this one's steps are copied
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
                of_rows: gl.constexpr = scales_desc.block_type.nbytes if FORM.row_groups else 0
                of_weights: gl.constexpr = 2 * source[6].block_type.nbytes if FORM.boxed else 0
                beside: gl.constexpr = of_rows + of_weights
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
                    # Woven: a piece of one half of the columns, then that of the other.
                    quarters = b.index(s if FORM.woven else HALVES * s + half)
                    for n in gl.static_range(COUNT):
                        tma.async_copy_global_to_shared(
                            rows_desc,
                            [first + n * PIECE, k * ROW_DEPTH + half * (ROW_DEPTH // HALVES)],
                            bar,
                            quarters.slice((n * HALVES + half if FORM.woven else n) * PIECE, PIECE),
                            pred=pieces > n,
                        )
                if FORM.row_groups:
                    tma.async_copy_global_to_shared(
                        scales_desc, [k * scales_desc.block_type.shape[0], first], bar, c.index(s)
                    )
                if FORM.boxed:
                    _copy_scales(source[6], matrix, upright, k, steps, bar, operands[3], s, FORM)
                if FORM.spares:
                    tma.async_copy_global_to_shared(
                        rows_desc, [first + TILE_ROWS, k * BLOCK_DEPTH], bar, c.index(s), pred=pieces > PIECES
                    )
            step += 1
            if k == gl.minimum(1, steps - 1):
                ticket = gl.num_programs(0) + gl.atomic_add(control + COUNTER, 1, sem="relaxed")
            if k == gl.minimum(3, steps - 1):
                tile, row, count, expert, column = find_tile(tiles, max_tiles, ticket, total, num_n, FORM.column_blocks)
            if GATHER:
                if k == gl.minimum(4, steps - 1):
                    token = gl.load(pairs + row + local, mask=local < count, other=0) // GATHER
                    token2 = gl.load(pairs + row + spare, mask=spare < count, other=0) // GATHER
    publish(tile, row, 0, expert, column, i, queue)


@gluon.jit
@no_type_check
def _copy_scales(boxes_desc, expert, column, k, steps, bar, boxes, s, FORM: gl.constexpr):
    """Those of four boxes of weights for one step: of gate and of up, or of neighbours."""
    WORDS: gl.constexpr = boxes_desc.block_type.shape[1]
    for n in gl.static_range(2):
        if FORM.gated:
            at = [(expert * 2 + n) * steps + k, column * WORDS]
        else:
            at = [expert * steps + k, (2 * column + n) * WORDS]
        tma.async_copy_global_to_shared(boxes_desc, at, bar, boxes.index(2 * s + n))
