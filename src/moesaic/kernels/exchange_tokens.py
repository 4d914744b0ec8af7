"""rows[t * N + r] = token t of rank r, for each token of each rank that has an expert here; other rows stay undefined.

One launch: a program writes its tokens straight into the memory of each rank that needs them, with the local ids and
the weights, tells the other ranks' same program, waits for those, and copies what came into memory of the batch. A row
is written once to each rank, and its place needs no counting: no plan, no atomics, the same in every run. CODED rows
are rounded to FP8 by the program that sends them, and read back by the one that copies them; its own are rounded too.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.exchange_arrivals import Arrivals, launch_options
from moesaic.kernels.exchange_codes import codes_of, load_values, store_codes, values_of
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.peer_flags import await_peers, row_of, signal
from moesaic.kernels.peer_window import PeerWindow, row_starts


def exchange_tokens(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
    window: PeerWindow,
    arrivals: Arrivals,
    *,
    shards: int = 1,
    coded: bool = False,
    phases: tuple[bool, bool] = (True, True),
) -> None:
    """Send `x` [T, H] with its routing [T, K] and fill `arrivals`; `tables`: slots_of, replicas, ranks, local ids.

    `coded`: whether rows travel as FP8. `phases`: whether to send and whether to receive. Both, but where one process
    plays all ranks one after the other.
    """
    slots_of, replicas, slot_ranks, local_ids = tables
    send, receive = phases
    hidden, top_k = x.shape[1], topk_ids.shape[1]
    scales_at, ids_at, weights_at, _ = row_starts(hidden, top_k, x.element_size(), coded=coded)
    _exchange_tokens[(window.programs,)](
        x,
        x.stride(0),
        topk_ids,
        topk_weights,
        slots_of,
        replicas,
        slot_ranks,
        local_ids,
        window.addresses,
        window.epochs,
        arrivals.rows,
        arrivals.rows.stride(0),
        arrivals.ids,
        arrivals.weights,
        arrivals.homes,
        arrivals.lengths,
        arrivals.num_valid,
        len(x),
        window.rank,
        window.max_tokens,
        window.rows_at,
        window.polls,
        E=len(replicas),
        W=slots_of.shape[1],
        N=window.num_ranks,
        K=top_k,
        H=hidden,
        SHARDS=shards,
        STRIDE=window.row_bytes,
        SCALES_AT=scales_at,
        IDS_AT=ids_at,
        WEIGHTS_AT=weights_at,
        SLOTS=triton.next_power_of_2(top_k),
        CODED=coded,
        SEND=send,
        RECEIVE=receive,
        **launch_options(hidden, x.device, coded=coded),
    )


@triton.jit(do_not_specialize=["num_tokens", "me", "max_tokens", "rows_at", "polls"])
@no_type_check
def _exchange_tokens(
    x,
    x_stride,
    topk_ids,
    topk_weights,
    slots_of,
    replicas,
    slot_ranks,
    local_ids,
    addresses,
    epochs,
    rows,
    row_stride,
    row_ids,
    row_weights,
    homes,
    lengths,
    num_valid,
    num_tokens,
    me,
    max_tokens,
    rows_at,
    polls,
    E: tl.constexpr,
    W: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    SHARDS: tl.constexpr,
    STRIDE: tl.constexpr,
    SCALES_AT: tl.constexpr,
    IDS_AT: tl.constexpr,
    WEIGHTS_AT: tl.constexpr,
    SLOTS: tl.constexpr,
    CODED: tl.constexpr,
    SEND: tl.constexpr,
    RECEIVE: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    given = slot < K
    wait_for_previous(OVERLAP)
    epoch = (tl.load(epochs + program) + 1) & 0x7FFFFFFF
    half = rows_at + (epoch % 2) * N * max_tokens * STRIDE
    if SEND:
        for token in range(program, num_tokens, programs):
            pair = tl.cast(token, tl.int64) * K + slot
            expert = tl.load(topk_ids + pair, mask=given, other=-1)
            weight = tl.load(topk_weights + pair, mask=given, other=0.0)
            active = (expert >= 0) & (expert < E)
            expert = tl.where(active, expert, 0)
            replica = (token + me) % tl.load(replicas + expert)
            place = tl.load(slots_of + expert * W + replica)
            home = tl.where(active, tl.load(slot_ranks + place), -1)
            local = tl.load(local_ids + place)
            tl.store(homes + pair, home, mask=given)
            own = tl.cast(token * N + me, tl.int64)
            for rank in tl.static_range(N):
                here = home == rank // SHARDS
                sent = tl.where(here, local, -1)
                if rank == me:
                    tl.store(row_ids + own * K + slot, sent, mask=given)
                    tl.store(row_weights + own * K + slot, weight, mask=given)
                else:
                    target = tl.load(addresses + rank) + half
                    tl.store(row_of(target + IDS_AT, me * max_tokens + token, STRIDE, row_ids) + slot, sent, mask=given)
                    tl.store(
                        row_of(target + WEIGHTS_AT, me * max_tokens + token, STRIDE, row_weights) + slot,
                        weight,
                        mask=given,
                    )
            for start in tl.static_range(0, H, BLOCK):
                inside = start + column < H
                value = tl.load(x + tl.cast(token, tl.int64) * x_stride + start + column, mask=inside, other=0.0)
                if CODED:
                    codes, scales = codes_of(value.to(tl.float32), BLOCK)
                    value = values_of(codes, scales, BLOCK).to(rows.dtype.element_ty)
                for rank in tl.static_range(N):
                    needed = tl.max((home == rank // SHARDS).to(tl.int32), 0) > 0
                    if rank == me:
                        tl.store(rows + own * row_stride + start + column, value, mask=inside & needed)
                    elif CODED:
                        store_codes(
                            tl.load(addresses + rank) + half, me * max_tokens + token, codes, scales, start, needed,
                            H, STRIDE, SCALES_AT, BLOCK,
                        )  # fmt: skip
                    else:
                        target = row_of(tl.load(addresses + rank) + half, me * max_tokens + token, STRIDE, rows)
                        tl.store(target + start + column, value, mask=inside & needed)
        signal(addresses, epoch, num_tokens, me, N, LANES)
    if RECEIVE:
        lane = tl.arange(0, LANES)
        stated = tl.where(lane == me, num_tokens, await_peers(addresses, epoch, me, polls, N, LANES))
        stated = tl.where(lane < N, stated, 0)
        if program == 0:
            tl.store(lengths + lane, stated, mask=lane < N)
            tl.store(num_valid, N * tl.max(stated, 0))
        for step in tl.static_range(N):
            peer = (me + step) % N
            number = tl.sum(tl.where(lane == peer, stated, 0), 0)
            source = tl.load(addresses + me) + half
            for token in range(program, max_tokens, programs):
                row = tl.cast(token * N + peer, tl.int64)
                if token >= number:
                    tl.store(row_ids + row * K + slot, tl.full([SLOTS], -1, tl.int32), mask=given)
                elif step > 0:
                    came = peer * max_tokens + token
                    found = tl.load(row_of(source + IDS_AT, came, STRIDE, row_ids) + slot, mask=given, other=-1)
                    weight = tl.load(
                        row_of(source + WEIGHTS_AT, came, STRIDE, row_weights) + slot, mask=given, other=0.0
                    )
                    tl.store(row_ids + row * K + slot, found, mask=given)
                    tl.store(row_weights + row * K + slot, weight, mask=given)
                    needed = tl.max(found, 0) >= 0
                    for start in tl.static_range(0, H, BLOCK):
                        inside = (start + column < H) & needed
                        if CODED:
                            value = load_values(source, came, start, needed, H, STRIDE, SCALES_AT, BLOCK)
                            value = value.to(rows.dtype.element_ty)
                        else:
                            value = tl.load(row_of(source, came, STRIDE, rows) + start + column, mask=inside, other=0.0)
                        tl.store(rows + row * row_stride + start + column, value, mask=inside)
        tl.store(epochs + program, epoch)
