"""The order of many pairs in three launches: a histogram for each block, its sum over the blocks before, the places.

A block ranks its pairs by a matrix product: the pairs of each expert before each pair are the strictly lower triangle
times the 0/1 matrix [pairs, experts], exact in float16. Comparing all pairs of a block instead took 8 us a step.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.row_order import HEADER, RowOrder
from moesaic.kernels.tile_entries import ENTRIES, reset_control, tile_count, write_no_tiles, write_tiles

RANKED = 16384
"""Elements of the 0/1 matrix in which a program ranks some pairs at a time: 64 a thread."""

MOST_BLOCKS = 1024
"""Histograms: the scan holds as many in registers, 8 experts in a program."""

_HEADER = tl.constexpr(HEADER)
_SCANNED = tl.constexpr(8)


def order_many(ids: Tensor, order: RowOrder, num_experts: int, *, spare: int, alignment: int, group: int) -> None:
    """Fill `order` with the pairs of `ids` [T, K], which are contiguous."""
    num_pairs = ids.numel()
    bins = max(16, triton.next_power_of_2(num_experts))  # a matrix product has 16 columns at least
    step = max(16, min(128, RANKED // bins))
    block = max(step, triton.next_power_of_2(triton.cdiv(num_pairs, MOST_BLOCKS)))
    blocks = triton.cdiv(num_pairs, block)
    histograms = torch.empty(blocks + 1, bins, dtype=torch.int32, device=ids.device)
    totals = histograms[blocks]
    overlap = overlap_launches(ids.device)
    dependent = {"OVERLAP": overlap, **({"launch_pdl": True} if overlap else {})}
    _count[(blocks,)](ids, histograms, num_pairs, E=num_experts, BINS=bins, BLOCK=block, OVERLAP=overlap, num_warps=4)
    _scan[(bins // _SCANNED.value,)](
        histograms, totals, blocks, BINS=bins, BLOCKS=triton.next_power_of_2(blocks), num_warps=8, **dependent
    )
    _place[(max(blocks, triton.cdiv(order.max_tiles, ENTRIES)),)](
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
        STEP=step,
        TILE_ROWS=order.tile_rows,
        SPARE=spare,
        ALIGNMENT=alignment,
        GROUP=group,
        ENTRIES=ENTRIES,
        num_warps=8,
        **dependent,
    )


@triton.jit(do_not_specialize=["num_pairs"])
@no_type_check
def _count(ids, histograms, num_pairs, E: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    wait_for_previous(OVERLAP)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
    counts = tl.histogram(of, BINS, mask=(of >= 0) & (of < E))
    tl.store(histograms + tl.program_id(0) * BINS + tl.arange(0, BINS), counts)


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
    STEP: tl.constexpr,
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

    base = starts + before
    earlier = tl.arange(0, STEP)[None, :] < tl.arange(0, STEP)[:, None]
    for step in range(BLOCK // STEP):
        pair = program * BLOCK + step * STEP + tl.arange(0, STEP)
        of = tl.load(ids + pair, mask=pair < num_pairs, other=-1)
        live = (of >= 0) & (of < E)
        chosen = of[:, None] == bins[None, :]
        # Pairs of each expert before each pair, exact: 0 and 1 in float16, sums up to 128.
        rank = tl.dot(earlier.to(tl.float16), chosen.to(tl.float16)).to(tl.int32)
        row = tl.sum(tl.where(chosen, rank + base[None, :], 0), 1)
        tl.store(pairs + row, pair, mask=live)
        tl.store(places + pair, tl.where(live, row, -1), mask=pair < num_pairs)
        base += tl.sum(chosen.to(tl.int32), 0)
