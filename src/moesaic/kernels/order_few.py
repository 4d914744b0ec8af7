"""The order of few pairs in one launch: program e places the pairs of expert e by itself.

Every program reads all ids (16 KB at most, from L2), so no program waits for another.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.tile_entries import reset_control, tile_count, write_no_tiles, write_tiles
from moesaic.kernels.whole_numbers import next_power_of_2


def order_few(ids: Tensor, order: RowOrder, num_experts: int, *, spare: int, alignment: int, group: int) -> None:
    """Fill `order` with the pairs of `ids` [T, K], which are contiguous."""
    num_pairs = ids.numel()
    overlap = overlap_launches(ids.device)
    _order_few[(num_experts,)](
        ids,
        order.pairs,
        order.places,
        order.tiles,
        order.control,
        num_pairs,
        order.max_tiles,
        E=num_experts,
        BINS=next_power_of_2(num_experts),
        PAIRS=next_power_of_2(max(num_pairs, 2)),
        MAX_TILES=next_power_of_2(max(order.max_tiles, 2)),
        TILES=next_power_of_2(num_pairs // order.tile_rows + 2),
        TILE_ROWS=order.tile_rows,
        SPARE=spare,
        ALIGNMENT=alignment,
        GROUP=group,
        OVERLAP=overlap,
        num_warps=4 if num_pairs <= 1024 else 8,
        **({"launch_pdl": True} if overlap else {}),
    )


@DirectLaunch
@triton.jit(do_not_specialize=["num_pairs", "max_tiles"])
@no_type_check
def _order_few(
    ids,
    pairs,
    places,
    tiles,
    control,
    num_pairs,
    max_tiles,
    E: tl.constexpr,
    BINS: tl.constexpr,
    PAIRS: tl.constexpr,
    MAX_TILES: tl.constexpr,
    TILES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    SPARE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    expert = tl.program_id(0)
    pair = tl.arange(0, PAIRS)
    wait_for_previous(OVERLAP)
    of = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    live = (of >= 0) & (of < E)
    counts = tl.histogram(of, BINS, mask=live)
    bins = tl.arange(0, BINS)
    starts = (counts + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    heights = tile_count(counts, TILE_ROWS, SPARE)
    earlier = bins < expert
    first = tl.sum(tl.where(earlier, starts, 0), 0)
    first_tile = tl.sum(tl.where(earlier, heights, 0), 0)
    count = tl.sum(tl.where(bins == expert, counts, 0), 0)
    mine = (of == expert).to(tl.int32)
    row = first + tl.cumsum(mine, 0) - 1
    tl.store(pairs + row, pair, mask=mine > 0)
    tl.store(places + pair, row, mask=mine > 0)
    local = tl.arange(0, TILES)
    held = tile_count(count, TILE_ROWS, SPARE)
    write_tiles(tiles, max_tiles, first_tile + local, local, held, expert, first, count, local < held, TILE_ROWS, GROUP)
    if expert == 0:
        tl.store(places + pair, tl.full([PAIRS], -1, tl.int32), mask=(pair < num_pairs) & ~live)
        total = tl.sum(heights, 0)
        tile = tl.arange(0, MAX_TILES)
        write_no_tiles(tiles, max_tiles, tile, (tile < max_tiles) & (tile >= total))
        reset_control(control, total, tile, max_tiles)
