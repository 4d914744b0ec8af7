"""out[t] = sum_r of rank r's sum for token t, in float32, in the order of ranks, rounded once.

One launch: programs write the rows of their stripe, some at a time, straight into the memory of the ranks whose tokens
they are, tell the same stripe of the other ranks, and add up what came while the next ones travel. Sums travel as they
are given; zero where a rank was not needed.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.exchange_arrivals import Arrivals, launch_options
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.peer_flags import ALL_STEPS, all_heard, await_peers, number_of, signal
from moesaic.kernels.peer_window import PeerWindow
from moesaic.kernels.sum_steps import add_sums, send_sums


def exchange_sums(
    sums: Tensor,
    arrivals: Arrivals,
    window: PeerWindow,
    out: Tensor,
    *,
    shards: int = 1,
    phases: tuple[bool, bool] = (True, True),
) -> None:
    """Fill `out` [T, H]; `sums` [M * N, H] lie as `arrivals.rows` do. `phases` as for `exchange_tokens`."""
    send, receive = phases
    hidden = out.shape[1]
    _exchange_sums[(window.plan.programs,)](
        sums,
        sums.stride(0),
        arrivals.ids,
        arrivals.homes,
        arrivals.lengths,
        window.addresses,
        window.epochs,
        out,
        len(out),
        window.rank,
        window.num_ranks,
        window.max_tokens,
        window.rows_at,
        window.polls,
        window.plan.stripes,
        window.plan.rows_of(hidden * sums.element_size()),
        N=window.num_ranks,
        K=arrivals.ids.shape[1],
        H=hidden,
        SHARDS=shards,
        STRIDE=window.row_bytes,
        SLOTS=triton.next_power_of_2(arrivals.ids.shape[1]),
        SEND=send,
        RECEIVE=receive,
        **launch_options(sums, window.plan),
    )


@triton.jit(do_not_specialize=["num_tokens", "me", "num_ranks", "max_tokens", "rows_at", "polls", "stripes", "at_once"])
@no_type_check
def _exchange_sums(
    sums,
    sum_stride,
    row_ids,
    homes,
    lengths,
    addresses,
    epochs,
    out,
    num_tokens,
    me,
    num_ranks,
    max_tokens,
    rows_at,
    polls,
    stripes,
    at_once,
    N: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    SHARDS: tl.constexpr,
    STRIDE: tl.constexpr,
    SLOTS: tl.constexpr,
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
            lane = tl.arange(0, LANES)
            stated = tl.load(lengths + lane, mask=(lane < N) & (lane != me), other=0)
            steps = tl.maximum(tl.cdiv(tl.max(stated, 0) - stripe, stride), 1)
            for step in range(steps):
                first = stripe + step * stride
                send_sums(
                    sums, sum_stride, row_ids, addresses, half, stated, first, first + stride, stripes, me, num_ranks,
                    max_tokens, N, K, H, STRIDE, SLOTS, BLOCK, LANES,
                )  # fmt: skip
                done = tl.where(step + 1 < steps, step + 1, ALL_STEPS)
                signal(addresses, epoch, done, num_tokens, me, stripe, stripes, N, LANES)
            tl.store(epochs + program, epoch)
    if RECEIVE:
        if program >= stripes:
            for step in range(tl.maximum(tl.cdiv(num_tokens - stripe, stride), 1)):
                _, polls = await_peers(addresses, epoch, step + 1, me, polls, stripe, stripes, N, LANES)
                first = stripe + step * stride
                add_sums(
                    sums, sum_stride, homes, addresses, half, out, first, tl.minimum(first + stride, num_tokens),
                    stripes, me, num_ranks, max_tokens, N, K, H, SHARDS, STRIDE, SLOTS, BLOCK,
                )  # fmt: skip
            tl.store(epochs + program, epoch)
            all_heard(polls)
