"""The order of many pairs in three launches: a histogram for each block, its sum over the blocks before, the places.

A block ranks its pairs by sorting (expert, pair) as one integer: 55 exchanges a pair for 1024 of them. Multiplying the
0/1 matrix [pairs, experts] by a triangle instead takes 128 products a pair for 128 experts: 48 us at 131072 pairs.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.row_order import HEADER, RowOrder
from moesaic.kernels.tile_entries import ENTRIES, reset_control, tile_count, write_no_tiles, write_tiles
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2

LEAST_BLOCK, MOST_BLOCKS = 256, 128
"""Pairs of one block at least, and more where that would be too many blocks."""

_HEADER = tl.constexpr(HEADER)
_SCANNED = tl.constexpr(8)


def order_many(ids: Tensor, order: RowOrder, num_experts: int, *, spare: int, alignment: int, group: int) -> None:
    """Fill `order` with the pairs of `ids` [T, K], which are contiguous."""
    num_pairs = ids.numel()
    bins = max(_SCANNED.value, next_power_of_2(num_experts))
    block = max(LEAST_BLOCK, next_power_of_2(ceil_div(num_pairs, MOST_BLOCKS)))
    blocks = ceil_div(num_pairs, block)
    histograms = torch.empty(blocks + 1, bins, dtype=torch.int32, device=ids.device)
    totals = histograms[blocks]
    overlap = overlap_launches(ids.device)
    dependent = {"OVERLAP": overlap, **({"launch_pdl": True} if overlap else {})}
    _count[(blocks,)](ids, histograms, num_pairs, E=num_experts, BINS=bins, BLOCK=block, num_warps=4, **dependent)
    _scan[(bins // _SCANNED.value,)](
        histograms, totals, blocks, BINS=bins, BLOCKS=next_power_of_2(blocks), num_warps=8, **dependent
    )
    _place[(max(blocks, ceil_div(order.max_tiles, ENTRIES)),)](
        ids,
        histograms,
        totals,
        blocks,
        order.pairs,
        order.places,
        order.tiles,
        order.control,
        num_pairs,
        order.max_tiles,
        E=num_experts,
        BINS=bins,
        BLOCK=block,
        TILE_ROWS=order.tile_rows,
        SPARE=spare,
        ALIGNMENT=alignment,
        GROUP=group,
        ENTRIES=ENTRIES,
        num_warps=4 if bins <= 512 and block <= 512 else 8,  # 4 spill
        **dependent,
    )


@DirectLaunch
@triton.jit(do_not_specialize=["num_pairs"])
@no_type_check
def _count(ids, histograms, num_pairs, E: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    counts = tl.histogram(of, BINS, mask=(of >= 0) & (of < E))
    tl.store(histograms + tl.program_id(0) * BINS + tl.arange(0, BINS), counts)


@DirectLaunch
@triton.jit(do_not_specialize=["blocks"])
@no_type_check
def _scan(histograms, totals, blocks, BINS: tl.constexpr, BLOCKS: tl.constexpr, OVERLAP: tl.constexpr):
    """In place: of each block's histogram, what lies before it."""
    wait_for_previous(OVERLAP)
    block = tl.arange(0, BLOCKS)
    some = tl.program_id(0) * _SCANNED + tl.arange(0, _SCANNED)
    at = histograms + block[:, None] * BINS + some[None, :]
    there = (block < blocks)[:, None] & (some < BINS)[None, :]
    counts = tl.load(at, mask=there, other=0)
    tl.store(at, tl.cumsum(counts, 0) - counts, mask=there)
    tl.store(totals + some, tl.sum(counts, 0))


@DirectLaunch
@triton.jit(do_not_specialize=["blocks", "num_pairs", "max_tiles"])
@no_type_check
def _place(
    ids,
    histograms,
    totals,
    blocks,
    pairs,
    places,
    tiles,
    control,
    num_pairs,
    max_tiles,
    E: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    SPARE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    GROUP: tl.constexpr,
    ENTRIES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.load(totals + bins)
    before = tl.load(histograms + program * BINS + bins, mask=(bins < BINS) & (program < blocks), other=0)
    padded = (counts + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    starts = tl.cumsum(padded, 0) - padded
    heights = tile_count(counts, TILE_ROWS, SPARE)
    ends = tl.cumsum(heights, 0)
    total = tl.sum(heights, 0)

    if program * ENTRIES < max_tiles:
        tile = program * ENTRIES + tl.arange(0, ENTRIES)
        expert = tl.sum((ends[None, :] <= tile[:, None]).to(tl.int32), 1)
        own = bins[None, :] == expert[:, None]
        held = tl.maximum(tl.sum(tl.where(own, heights[None, :], 0), 1), 1)
        inside = tile - tl.sum(tl.where(own, (ends - heights)[None, :], 0), 1)
        first = tl.sum(tl.where(own, starts[None, :], 0), 1)
        count = tl.sum(tl.where(own, counts[None, :], 0), 1)
        write_tiles(tiles, max_tiles, tile, inside, held, expert, first, count, tile < total, TILE_ROWS, GROUP)
        write_no_tiles(tiles, max_tiles, tile, (tile < max_tiles) & (tile >= total))
        tl.store(control + _HEADER + tile, tl.zeros([ENTRIES], tl.int32), mask=tile < max_tiles)
        if program == 0:
            reset_control(control, total, tile, 0)

    pair = program * BLOCK + tl.arange(0, BLOCK)
    of = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    live = (of >= 0) & (of < E)
    inside = tl.histogram(of, BINS, mask=live)
    base = starts + before - (tl.cumsum(inside, 0) - inside)
    NOBODY: tl.constexpr = BINS * BLOCK  # behind every expert
    ordered = tl.sort(tl.where(live, of * BLOCK + tl.arange(0, BLOCK), NOBODY))
    active = ordered < NOBODY
    row = tl.gather(base, tl.where(active, ordered // BLOCK, 0), 0) + tl.arange(0, BLOCK)
    ranked = program * BLOCK + ordered % BLOCK
    tl.store(pairs + row, ranked, mask=active)
    tl.store(places + ranked, row, mask=active)
    tl.store(places + pair, tl.full([BLOCK], -1, tl.int32), mask=(pair < num_pairs) & ~live)
