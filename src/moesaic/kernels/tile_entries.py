"""What every kernel that orders rows writes alike: the entries of tiles, and the control words."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.row_order import HEADER

ENTRIES = 32
"""Tiles written by one program."""

_HEADER = tl.constexpr(HEADER)


@triton.jit
@no_type_check
def tile_count(counts, TILE_ROWS: tl.constexpr, SPARE: tl.constexpr):
    """Tiles for so many rows, if the last may take `SPARE` more."""
    return tl.where(counts > 0, tl.maximum((counts - SPARE + TILE_ROWS - 1) // TILE_ROWS, 1), 0)


@triton.jit
@no_type_check
def write_tiles(
    tiles, max_tiles, tile, local, held, expert, first, count, mask, TILE_ROWS: tl.constexpr, GROUP: tl.constexpr
):
    """Entries `tile`: number `local` of the `held` tiles of an expert whose `count` rows begin at `first`."""
    held = tl.maximum(held, 1)
    groups = tl.maximum((held + GROUP // 2) // GROUP, 1)  # group j holds the tiles held * j // groups and up
    group = ((local + 1) * groups - 1) // held
    begin = held * group // groups
    entry = tiles + tile
    tl.store(entry, tl.zeros_like(tile) + expert, mask=mask)
    tl.store(entry + max_tiles, first + local * TILE_ROWS, mask=mask)
    end = tl.where(local + 1 == held, count, (local + 1) * TILE_ROWS)
    tl.store(entry + 2 * max_tiles, first + end, mask=mask)
    tl.store(entry + 3 * max_tiles, tile - local + begin, mask=mask)
    tl.store(entry + 4 * max_tiles, held * (group + 1) // groups - begin, mask=mask)


@triton.jit
@no_type_check
def write_no_tiles(tiles, max_tiles, tile, mask):
    """Entries `tile`, past the last: nobody's, without rows, each a group of its own: safe to look up."""
    zero = tl.zeros_like(tile)
    tl.store(tiles + tile, zero - 1, mask=mask)
    for field in tl.static_range(1, 4):
        tl.store(tiles + field * max_tiles + tile, zero, mask=mask)
    tl.store(tiles + 4 * max_tiles + tile, zero + 1, mask=mask)


@triton.jit
@no_type_check
def reset_control(control, total, tile, flags):
    """The number of tiles, the counters, and the first `flags` flags."""
    tl.store(control, total)
    for counter in tl.static_range(1, _HEADER):
        tl.store(control + counter, 0)
    tl.store(control + _HEADER + tile, tl.zeros_like(tile), mask=tile < flags)
