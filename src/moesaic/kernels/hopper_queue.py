"""What the roles of a grouped product on Hopper tell each other: tiles through a queue, what is stored by flags."""

from __future__ import annotations

from typing import no_type_check

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from moesaic.kernels.hopper_form import QUEUED, WEIGHT_ROWS
from moesaic.kernels.row_order import BLOCKS_AT, HEADER

_HEADER, _BLOCKS_AT = gl.constexpr(HEADER), gl.constexpr(BLOCKS_AT)


@gluon.jit
@no_type_check
def find_tile(tiles, max_tiles, ticket, total, num_n, BLOCKS: gl.constexpr):
    """Ticket -> (row tile, first row, rows, expert, column tile). A group of row tiles of one expert goes through all
    column tiles of a block together, rows fastest; its tickets are consecutive, and so are those of a block.
    """
    ticket = gl.minimum(ticket, total - 1)
    before = 0
    if BLOCKS > 1:
        wide = gl.cdiv(num_n, BLOCKS)
        per_block = total // num_n * wide
        before = ticket // per_block * wide
        ticket -= total // num_n * before
        num_n = gl.minimum(wide, num_n - before)
    nominal = tiles + ticket // num_n
    first = gl.load(nominal + 3 * max_tiles)
    size = gl.load(nominal + 4 * max_tiles)
    inside = ticket - first * num_n
    column = inside // size
    tile = first + inside - column * size
    column += before
    entry = tiles + tile
    row = gl.load(entry + max_tiles)
    return tile, row, gl.load(entry + 2 * max_tiles) - row, gl.load(entry), column


@gluon.jit
@no_type_check
def publish(tile, row, count, expert, column, i, queue):
    """Hand both consumers tile number i of this program; no rows: there are no more."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    entries, full, empty = queue
    slot = i % QUEUED
    mbarrier.wait(empty.index(slot), ((i // QUEUED) & 1) ^ 1)
    where = (row.to(gl.int64) << 32) | tile
    what = (expert.to(gl.int64) << 32) | (column << 8) | count
    entries.index(2 * slot).store(gl.full([1], 0, gl.int64, layout) + where)
    entries.index(2 * slot + 1).store(gl.full([1], 0, gl.int64, layout) + what)
    mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
@no_type_check
def receive(i, queue):
    """Tile number i of this program: (row tile, first row, rows, expert, column tile)."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    entries, full, empty = queue
    slot = i % QUEUED
    mbarrier.wait(full.index(slot), (i // QUEUED) & 1)
    where = gl.max(entries.index(2 * slot).load(layout), axis=0)
    what = gl.max(entries.index(2 * slot + 1).load(layout), axis=0)
    mbarrier.arrive(empty.index(slot), count=1)
    row, tile = (where >> 32).to(gl.int32), where.to(gl.int32)
    return tile, row, (what & 0xFF).to(gl.int32), (what >> 32).to(gl.int32), ((what >> 8) & 0xFFFFFF).to(gl.int32)


@gluon.jit
@no_type_check
def await_stored(control, tile, AFTER: gl.constexpr):
    """Wait until the flag of `tile` says that the rows which this product reads are in memory."""
    if AFTER > 0:
        while flag(control + _HEADER + tile) < AFTER:
            pass
        # The flag was read through the generic proxy, and the rows will be through the other.
        gl.inline_asm_elementwise("fence.proxy.async; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
@no_type_check
def flag(at):
    """An acquiring load."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];",
        "=r,l",
        [at.to(gl.int64, bitcast=True)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
@no_type_check
def counted_at(tile, column, width, FORM: gl.constexpr):
    """The slot of `control` that counts what is stored of a tile: its flag, or its block's of columns."""
    if FORM.slots > 0:
        return _BLOCKS_AT + column // gl.cdiv(gl.cdiv(width, 4 * WEIGHT_ROWS), FORM.column_blocks)
    else:
        return _HEADER + tile


@gluon.jit
@no_type_check
def announce_stored(control, counter, FORM: gl.constexpr):
    """Say in slot `counter` (-1: none yet) that this consumer's part of a tile is in memory, a whole tile later."""
    if FORM.announce or FORM.slots > 0:
        gl.inline_asm_elementwise("cp.async.bulk.wait_group 0; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        tl.debug_barrier()  # the thread that waited for its stores comes before the one that says so
        gl.atomic_add(control + counter, 1, sem="release", mask=counter >= 0)
