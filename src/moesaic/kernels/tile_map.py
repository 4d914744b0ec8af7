"""The tiles of rows that lie in expert order already: expert e owns rows offsets[e] to offsets[e] + counts[e]."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.row_order import HEADER, RowOrder
from moesaic.kernels.tile_entries import ENTRIES, reset_control, tile_count, write_no_tiles, write_tiles
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2

_HEADER = tl.constexpr(HEADER)


def map_tiles(
    counts: Tensor, offsets: Tensor | None, num_rows: int, *, tile_rows: int, spare: int = 0, group: int = 1
) -> RowOrder:
    """The order of `num_rows` rows whose experts' begin at `offsets`, or without them at equal distances.

    Its `pairs` and `places` are empty: a row is its own. `spare` and `group` as for `order_rows`.
    """
    experts = counts.shape[0]
    capacity = num_rows // experts
    tiles = num_rows // tile_rows + experts if offsets is not None else experts * ceil_div(capacity, tile_rows)
    order = RowOrder.empty(0, 0, max(tiles, 1), tile_rows, counts.device)
    _map[(ceil_div(order.max_tiles, ENTRIES),)](
        counts,
        counts if offsets is None else offsets,
        capacity if offsets is None else num_rows,
        experts,
        order.tiles,
        order.control,
        order.max_tiles,
        BINS=next_power_of_2(experts),
        SLABS=offsets is None,
        TILE_ROWS=tile_rows,
        SPARE=spare,
        GROUP=group,
        ENTRIES=ENTRIES,
        num_warps=4 if experts <= 128 else 8,  # 32 tiles times the experts in registers
    )
    return order


@DirectLaunch
@triton.jit(do_not_specialize=["limit", "experts", "max_tiles"])
@no_type_check
def _map(
    counts,
    offsets,
    limit,
    experts,
    tiles,
    control,
    max_tiles,
    BINS: tl.constexpr,
    SLABS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    SPARE: tl.constexpr,
    GROUP: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    bins = tl.arange(0, BINS)
    count = tl.load(counts + bins, mask=bins < experts, other=0)
    if SLABS:
        start = bins * limit
        count = tl.minimum(tl.maximum(count, 0), limit)
    else:
        start = tl.load(offsets + bins, mask=bins < experts, other=0)
        count = tl.minimum(tl.maximum(count, 0), tl.maximum(limit - start, 0))  # never past the rows
    heights = tile_count(count, TILE_ROWS, SPARE)
    ends = tl.cumsum(heights, 0)
    total = tl.minimum(tl.sum(heights, 0), max_tiles)  # more only if experts claim each other's rows
    tile = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    expert = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), 1)
    own = bins[None, :] == expert[:, None]
    held = tl.maximum(tl.sum(tl.where(own, heights[None, :], 0), 1), 1)
    inside = tile - tl.sum(tl.where(own, (ends - heights)[None, :], 0), 1)
    first = tl.sum(tl.where(own, start[None, :], 0), 1)
    height = tl.sum(tl.where(own, count[None, :], 0), 1)
    write_tiles(tiles, max_tiles, tile, inside, held, expert, first, height, tile < total, TILE_ROWS, GROUP)
    write_no_tiles(tiles, max_tiles, tile, (tile < max_tiles) & (tile >= total))
    tl.store(control + _HEADER + tile, tl.zeros([ENTRIES], tl.int32), mask=tile < max_tiles)
    if tl.program_id(0) == 0:
        reset_control(control, total, tile, 0)
