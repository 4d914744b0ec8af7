"""out[m, :] = bias + W_block @ x[m] for up to 32 rows m and 32 columns of a weight packed in pairs, on AMX tiles.

A step takes 32 k: the rows as one or two tiles of 16 x 32 bfloat16, the block's 32 columns as two tiles of 16 pairs
x 16 columns, which is how oneDNN packed them, and up to four tile products. The sums stay in tiles, so 16 rows cost
what one costs, and the memory's bandwidth is what is left; asking for the weight ahead of its use gained nothing
(0, 1, 2, 4 or 8 steps: 105 microseconds for 2 MiB at 4 rows on two cores, a sum of the same bytes 102). Tiles: Intel's
Software Developer's Manual, volume 1, chapter 18.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

TILE_ROWS = 16
"""Rows of a tile of x, at most; a kernel takes one or two tiles of them."""

TILE_DEPTH = 32
"""Values of k in one step."""

TILE_COLUMNS = 32
"""Columns of one call: two tiles of 16."""

INT8, INT64 = ir.IntType(8), ir.IntType(64)
BYTES, VOID = INT8.as_pointer(), ir.VoidType()
SUMS, ROWS, WEIGHT = (0, 1, 2, 3), (4, 5), (6, 7)
"""Which of the eight tiles hold what; the sums of the second tile of rows are in 2 and 3."""


def tile_configurations() -> np.ndarray:
    """Row r, uint8 `[33, 64]`: what `ldtilecfg` reads for r rows (palette, bytes a row, rows of every tile)."""
    table = np.zeros((2 * TILE_ROWS + 1, 64), dtype=np.uint8)
    for rows in range(1, 2 * TILE_ROWS + 1):
        first, second = min(rows, TILE_ROWS), max(rows - TILE_ROWS, 0)
        heights = {**dict.fromkeys((*SUMS[:2], ROWS[0]), first), **dict.fromkeys(WEIGHT, TILE_DEPTH // 2)}
        if second:
            heights |= dict.fromkeys((*SUMS[2:], ROWS[1]), second)
        table[rows, 0] = 1
        for tile, height in heights.items():
            table[rows, 16 + 2 * tile] = 64
            table[rows, 48 + tile] = height
    return table


def tiles_of(row_tiles: int) -> Callable[..., None]:
    """The kernel for 1 to 16 rows (`row_tiles` 1) or 17 to 32 (2).

    Its arguments are int64: the addresses of the configuration for that many rows, of the weight's first pair, of the
    bias (float32), of the first row (bfloat16) and of the first output (float32); the bytes between pairs of the
    weight, between rows of x and between rows of the output; the number of steps.
    """

    @intrinsic
    def tiles(
        _context: Any,
        _configuration: Any,
        _weight: Any,
        _bias: Any,
        _x: Any,
        _out: Any,
        _weight_stride: Any,
        _x_stride: Any,
        _out_stride: Any,
        _steps: Any,
    ) -> Any:
        def generate(context: Any, b: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
            _generate(b, arguments, row_tiles)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 9)), generate

    return tiles


def _generate(b: ir.IRBuilder, arguments: Sequence[Any], row_tiles: int) -> None:
    configuration, weight, bias, x, out, weight_stride, x_stride, out_stride, steps = arguments
    sums = [(r, c, SUMS[2 * r + c]) for r in range(row_tiles) for c in range(2)]
    _call(b, "ldtilecfg", _pointer(b, configuration))
    for _, c, tile in sums:  # a stride of zero reads one row of 16 values into every row of the tile
        _call(b, "tileloadd64", INT8(tile), _pointer(b, bias, 64 * c), INT64(0))
    step_bytes = b.mul(weight_stride, INT64(TILE_DEPTH // 2))
    second_rows = b.mul(x_stride, INT64(TILE_ROWS))
    entry, loop, done = b.block, b.append_basic_block("step"), b.append_basic_block("done")
    b.branch(loop)

    b.position_at_end(loop)
    step = b.phi(INT64)
    step.add_incoming(INT64(0), entry)
    here = b.add(weight, b.mul(step, step_bytes))
    there = b.add(x, b.mul(step, INT64(2 * TILE_DEPTH)))
    for c in range(2):
        _call(b, "tileloadd64", INT8(WEIGHT[c]), _pointer(b, here, 64 * c), weight_stride)
    for r in range(row_tiles):
        _call(b, "tileloadd64", INT8(ROWS[r]), _pointer(b, b.add(there, second_rows) if r else there), x_stride)
    for r, c, tile in sums:
        _call(b, "tdpbf16ps", INT8(tile), INT8(ROWS[r]), INT8(WEIGHT[c]))
    following = b.add(step, INT64(1))
    step.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, steps), loop, done)

    b.position_at_end(done)
    for r, c, tile in sums:
        rows_below = b.mul(out_stride, INT64(TILE_ROWS * r))
        _call(b, "tilestored64", INT8(tile), _pointer(b, b.add(out, rows_below), 64 * c), out_stride)
    _call(b, "tilerelease")


def _call(b: ir.IRBuilder, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(VOID, [a.type for a in arguments])
    b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.x86.{name}"), arguments)


def _pointer(b: ir.IRBuilder, address: Any, offset: int = 0) -> Any:
    return b.inttoptr(b.add(address, INT64(offset)), BYTES)
