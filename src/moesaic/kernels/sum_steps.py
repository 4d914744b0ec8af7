"""One step of a stripe in an exchange of sums: what a program sends, and what one adds up once it has come."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.peer_flags import row_of


@triton.jit
@no_type_check
def send_sums(
    sums, sum_stride, row_ids, addresses, half, stated, first, stop, stripes, me, num_ranks, max_tokens,
    N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Store the sums of every other rank's tokens from `first` to `stop` into its memory."""
    column = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    given = slot < K
    lane = tl.arange(0, LANES)
    for offset in range(1, num_ranks):
        peer = (me + offset) % num_ranks  # each rank begins with another, so that none is written to by all
        target = tl.load(addresses + peer) + half
        last = tl.minimum(stop, tl.sum(tl.where(lane == peer, stated, 0), 0))
        here = first < last
        row = tl.cast(first, tl.int64) * N + peer
        next_ids = tl.load(row_ids + row * K + slot, mask=given & here, other=-1)
        next_value = tl.load(sums + row * sum_stride + column, mask=(column < H) & here, other=0.0)
        for token in range(first, last, stripes):
            row = tl.cast(token, tl.int64) * N + peer
            to = row_of(target, me * max_tokens + token, STRIDE, sums) + column
            ids = next_ids
            value = next_value
            # What the next token needs is on its way while this one is stored; stored only where it is needed.
            more = token + stripes < last
            after = row + stripes * N
            next_ids = tl.load(row_ids + after * K + slot, mask=given & more, other=-1)
            next_value = tl.load(sums + after * sum_stride + column, mask=(column < H) & more, other=0.0)
            needed = tl.max(ids, 0) >= 0
            for start in tl.static_range(0, H, BLOCK):
                inside = start + column < H
                if start > 0:
                    value = tl.load(sums + row * sum_stride + start + column, mask=inside, other=0.0)
                tl.store(to + start, value, mask=inside & needed)


@triton.jit
@no_type_check
def add_sums(
    sums, sum_stride, homes, addresses, half, out, first, stop, stripes, me, num_ranks, max_tokens,
    N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, SHARDS: tl.constexpr, STRIDE: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up what came for this rank's tokens from `first` to `stop`, and its own sums for them."""
    column = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    source = tl.load(addresses + me) + half
    for token in range(first, stop, stripes):
        wide = tl.cast(token, tl.int64)
        home = tl.load(homes + wide * K + slot, mask=slot < K, other=-1)
        for start in tl.static_range(0, H, BLOCK):
            inside = start + column < H
            own = tl.load(sums + (wide * N + me) * sum_stride + start + column, mask=inside, other=0.0)
            total = tl.zeros([BLOCK], tl.float32)
            for rank in range(num_ranks):  # not unrolled: eight ranks' numbers at once take all registers
                came = row_of(source, rank * max_tokens + token, STRIDE, sums) + start + column
                value = tl.load(came, mask=inside & (rank != me), other=0.0)
                value = tl.where(rank == me, own, value)
                needed = tl.max((home == rank // SHARDS).to(tl.int32), 0) > 0
                total += tl.where(needed, value, 0.0).to(tl.float32)
            tl.store(out + wide * H + start + column, total.to(out.dtype.element_ty), mask=inside)
