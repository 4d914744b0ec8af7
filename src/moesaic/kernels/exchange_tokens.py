"""rows[t * N + r] = token t of rank r, for each token of each rank that has an expert here; other rows stay undefined.

One launch: programs write the tokens of their stripe, some at a time, straight into the memory of each rank that needs
them, with the local ids and the weights, tell the same stripe of the other ranks, and copy what came into memory of the
batch while the next ones travel. A row is written once to each rank, and its place needs no counting: no atomics, the
same in every run. CODED rows are rounded to FP8 by the program that sends them, and read back by the one that copies
them; a rank's own are rounded too. Given bins, the program that sends a token counts its ids there, as
`count_ids.py` does in a launch of its own.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.exchange_arrivals import Arrivals, launch_options
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.peer_flags import ALL_STEPS, all_heard, await_peers, number_of, signal
from moesaic.kernels.peer_window import PeerWindow, row_starts
from moesaic.kernels.token_steps import receive_tokens, send_tokens


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
    bins: Tensor | None = None,
    phases: tuple[bool, bool] = (True, True),
) -> None:
    """Send `x` [T, H] with its routing [T, K] and fill `arrivals`; `tables`: slots_of, replicas, ranks, local ids.

    `coded`: whether rows travel as FP8. `bins` [E + 2] of int64, if given: bins[e + 1] += how many slots are e.
    `phases`: whether to send, and count, and whether to receive. Both, but where one process plays all ranks one after
    the other.
    """
    slots_of, replicas, slot_ranks, local_ids = tables
    send, receive = phases
    hidden, top_k = x.shape[1], topk_ids.shape[1]
    scales_at, ids_at, weights_at, row_bytes = row_starts(hidden, top_k, x.element_size(), coded=coded)
    _exchange_tokens[(window.plan.programs,)](
        x,
        x.stride(0),
        topk_ids,
        topk_weights,
        slots_of,
        replicas,
        slot_ranks,
        local_ids,
        bins,
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
        window.plan.stripes,
        window.plan.rows_of(row_bytes),
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
        **launch_options(x, window.plan, coded=coded),
    )


@triton.jit(do_not_specialize=["num_tokens", "me", "max_tokens", "rows_at", "polls", "stripes", "at_once"])
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
    bins,
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
    stripes,
    at_once,
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
    stripe = program % stripes
    wait_for_previous(OVERLAP)
    epoch = number_of(epochs)
    half = rows_at + (epoch % 2) * N * max_tokens * STRIDE
    stride = stripes * at_once
    if SEND:
        if program < stripes:
            steps = tl.maximum(tl.cdiv(num_tokens - stripe, stride), 1)
            for step in range(steps):
                first = stripe + step * stride
                send_tokens(
                    x, x_stride, topk_ids, topk_weights, slots_of, replicas, slot_ranks, local_ids, bins, addresses,
                    half, rows, row_stride, row_ids, row_weights, homes, first, tl.minimum(first + stride, num_tokens),
                    stripes, me, max_tokens,
                    E, W, N, K, H, SHARDS, STRIDE, SCALES_AT, IDS_AT, WEIGHTS_AT, SLOTS, CODED, BLOCK,
                )  # fmt: skip
                done = tl.where(step + 1 < steps, step + 1, ALL_STEPS)
                signal(addresses, epoch, done, num_tokens, me, stripe, stripes, N, LANES)
            tl.store(epochs + program, epoch)
    if RECEIVE:
        if program >= stripes:
            lane = tl.arange(0, LANES)
            stated = tl.zeros([LANES], tl.int32)
            for step in range(tl.cdiv(max_tokens, stride)):
                first = stripe + step * stride
                if (step == 0) | (tl.max(tl.where(lane == me, 0, stated), 0) > first):
                    seen, polls = await_peers(addresses, epoch, step + 1, me, polls, stripe, stripes, N, LANES)
                    stated = tl.where(lane == me, num_tokens, tl.where(lane < N, seen, 0))
                receive_tokens(
                    addresses, half, rows, row_stride, row_ids, row_weights, stated, first,
                    tl.minimum(first + stride, max_tokens), stripes, me, max_tokens,
                    N, K, H, STRIDE, SCALES_AT, IDS_AT, WEIGHTS_AT, SLOTS, CODED, BLOCK, LANES,
                )  # fmt: skip
            if stripe == 0:
                tl.store(lengths + lane, stated, mask=lane < N)
                tl.store(num_valid, N * tl.max(stated, 0))
            tl.store(epochs + program, epoch)
            all_heard(polls)
