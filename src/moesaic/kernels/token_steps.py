"""One step of a stripe in an exchange of tokens: what a program sends, and what one copies once it has come."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.exchange_codes import codes_of, load_values, store_codes, values_of
from moesaic.kernels.peer_flags import row_of


@triton.jit
@no_type_check
def send_tokens(
    x, x_stride, topk_ids, topk_weights, slots_of, replicas, slot_ranks, local_ids, bins, addresses, half,
    rows, row_stride, row_ids, row_weights, homes, first, stop, stripes, me, max_tokens,
    E: tl.constexpr, W: tl.constexpr, N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, SHARDS: tl.constexpr,
    STRIDE: tl.constexpr, SCALES_AT: tl.constexpr, IDS_AT: tl.constexpr, WEIGHTS_AT: tl.constexpr,
    SLOTS: tl.constexpr, CODED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store this rank's tokens from `first` to `stop` where they are needed, its own into the batch; count the ids."""
    column = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    given = slot < K
    here = first < stop
    next_expert = tl.load(topk_ids + tl.cast(first, tl.int64) * K + slot, mask=given & here, other=-1)
    next_weight = tl.load(topk_weights + tl.cast(first, tl.int64) * K + slot, mask=given & here, other=0.0)
    next_value = tl.load(x + tl.cast(first, tl.int64) * x_stride + column, mask=(column < H) & here, other=0.0)
    for token in range(first, stop, stripes):
        wide = tl.cast(token, tl.int64)
        pair = wide * K + slot
        expert = next_expert
        weight = next_weight
        value = next_value
        active = (expert >= 0) & (expert < E)
        expert = tl.where(active, expert, 0)
        if bins is not None:
            # Here alone, however many ranks need the token; nobody waits for the sums.
            tl.atomic_add(bins + 1 + expert, tl.full([SLOTS], 1, tl.int64), mask=active, sem="relaxed")
        if W > 1:
            place = tl.load(slots_of + expert * W + (token + me) % tl.load(replicas + expert))
        else:
            place = tl.load(slots_of + expert)
        # What the next token needs is on its way while this one is stored.
        more = token + stripes < stop
        next_expert = tl.load(topk_ids + pair + stripes * K, mask=given & more, other=-1)
        next_weight = tl.load(topk_weights + pair + stripes * K, mask=given & more, other=0.0)
        after = x + (wide + stripes) * x_stride + column
        next_value = tl.load(after, mask=(column < H) & more, other=0.0)
        home = tl.where(active, tl.load(slot_ranks + place), -1)
        local = tl.load(local_ids + place)
        tl.store(homes + pair, home, mask=given)
        own = wide * N + me
        came = me * max_tokens + wide
        for rank in tl.static_range(N):
            sent = tl.where(home == rank // SHARDS, local, -1)
            if rank == me:
                tl.store(row_ids + own * K + slot, sent, mask=given)
                tl.store(row_weights + own * K + slot, weight, mask=given)
            else:
                target = tl.load(addresses + rank) + half
                tl.store(row_of(target + IDS_AT, came, STRIDE, row_ids) + slot, sent, mask=given)
                tl.store(row_of(target + WEIGHTS_AT, came, STRIDE, row_weights) + slot, weight, mask=given)
        for start in tl.static_range(0, H, BLOCK):
            inside = start + column < H
            if start > 0:
                value = tl.load(x + wide * x_stride + start + column, mask=inside, other=0.0)
            if CODED:
                codes, scales = codes_of(value.to(tl.float32), BLOCK)
                value = values_of(codes, scales, BLOCK).to(rows.dtype.element_ty)
            for rank in tl.static_range(N):
                needed = tl.max((home == rank // SHARDS).to(tl.int32), 0) > 0
                if rank == me:
                    tl.store(rows + own * row_stride + start + column, value, mask=inside & needed)
                elif CODED:
                    store_codes(
                        tl.load(addresses + rank) + half, came, codes, scales, start, needed,
                        H, STRIDE, SCALES_AT, BLOCK,
                    )  # fmt: skip
                else:
                    target = row_of(tl.load(addresses + rank) + half, came, STRIDE, rows)
                    tl.store(target + start + column, value, mask=inside & needed)


@triton.jit
@no_type_check
def receive_tokens(
    addresses, half, rows, row_stride, row_ids, row_weights, stated, first, stop, stripes, me, max_tokens,
    N: tl.constexpr, K: tl.constexpr, H: tl.constexpr, STRIDE: tl.constexpr, SCALES_AT: tl.constexpr,
    IDS_AT: tl.constexpr, WEIGHTS_AT: tl.constexpr, SLOTS: tl.constexpr, CODED: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Copy every other rank's tokens from `first` to `stop` into the batch; no ids where a rank has no such token."""
    column = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    given = slot < K
    lane = tl.arange(0, LANES)
    source = tl.load(addresses + me) + half
    for offset in tl.static_range(N):
        peer = (me + offset) % N
        number = tl.sum(tl.where(lane == peer, stated, 0), 0)
        for token in range(first, stop, stripes):
            row = tl.cast(token, tl.int64) * N + peer
            if token >= number:
                tl.store(row_ids + row * K + slot, tl.full([SLOTS], -1, tl.int32), mask=given)
            elif offset > 0:
                came = peer * max_tokens + token
                found = tl.load(row_of(source + IDS_AT, came, STRIDE, row_ids) + slot, mask=given, other=-1)
                weight = tl.load(row_of(source + WEIGHTS_AT, came, STRIDE, row_weights) + slot, mask=given, other=0.0)
                for start in tl.static_range(0, H, BLOCK):
                    inside = start + column < H
                    # Loaded before it is known whether the row is needed: its bytes are stored only if it is.
                    if CODED:
                        value = load_values(source, came, start, H, STRIDE, SCALES_AT, BLOCK)
                        value = value.to(rows.dtype.element_ty)
                    else:
                        value = tl.load(row_of(source, came, STRIDE, rows) + start + column, mask=inside, other=0.0)
                    needed = tl.max(found, 0) >= 0
                    tl.store(rows + row * row_stride + start + column, value, mask=inside & needed)
                tl.store(row_ids + row * K + slot, found, mask=given)
                tl.store(row_weights + row * K + slot, weight, mask=given)
