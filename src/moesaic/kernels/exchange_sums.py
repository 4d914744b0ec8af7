"""out[t] = sum_r of rank r's sum for token t, in float32, in the order of ranks, rounded once.

One launch: a program writes its rows straight into the memory of the ranks whose tokens they are, tells the other
ranks' same program, waits for those, and adds up. Sums travel as they are given; zero where a rank was not needed.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.exchange_arrivals import Arrivals, launch_options
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.peer_flags import await_peers, row_of, signal
from moesaic.kernels.peer_window import PeerWindow


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
    _exchange_sums[(window.programs,)](
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
        window.max_tokens,
        window.rows_at,
        window.polls,
        N=window.num_ranks,
        K=arrivals.ids.shape[1],
        H=hidden,
        SHARDS=shards,
        STRIDE=window.row_bytes,
        SLOTS=triton.next_power_of_2(arrivals.ids.shape[1]),
        SEND=send,
        RECEIVE=receive,
        **launch_options(hidden, sums.device),
    )


@triton.jit(do_not_specialize=["num_tokens", "me", "max_tokens", "rows_at", "polls"])
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
    max_tokens,
    rows_at,
    polls,
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
    programs = tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    given = slot < K
    wait_for_previous(OVERLAP)
    epoch = (tl.load(epochs + program) + 1) & 0x7FFFFFFF
    half = rows_at + (epoch % 2) * N * max_tokens * STRIDE
    if SEND:
        for step in tl.static_range(1, N):
            peer = (me + step) % N  # each rank begins with another, so that none is written to by all
            target = tl.load(addresses + peer) + half
            for token in range(program, tl.load(lengths + peer), programs):
                row = tl.cast(token * N + peer, tl.int64)
                needed = tl.max(tl.load(row_ids + row * K + slot, mask=given, other=-1), 0) >= 0
                for start in tl.static_range(0, H, BLOCK):
                    inside = (start + column < H) & needed
                    value = tl.load(sums + row * sum_stride + start + column, mask=inside, other=0.0)
                    tl.store(row_of(target, me * max_tokens + token, STRIDE, sums) + start + column, value, mask=inside)
        signal(addresses, epoch, num_tokens, me, N, LANES)
    if RECEIVE:
        await_peers(addresses, epoch, me, polls, N, LANES)
        source = tl.load(addresses + me) + half
        for token in range(program, num_tokens, programs):
            home = tl.load(homes + tl.cast(token, tl.int64) * K + slot, mask=given, other=-1)
            for start in tl.static_range(0, H, BLOCK):
                inside = start + column < H
                total = tl.zeros([BLOCK], tl.float32)
                for rank in tl.static_range(N):
                    needed = inside & (tl.max((home == rank // SHARDS).to(tl.int32), 0) > 0)
                    if rank == me:
                        own = sums + tl.cast(token * N + me, tl.int64) * sum_stride
                        total += tl.load(own + start + column, mask=needed, other=0.0).to(tl.float32)
                    else:
                        came = row_of(source, rank * max_tokens + token, STRIDE, sums)
                        total += tl.load(came + start + column, mask=needed, other=0.0).to(tl.float32)
                tl.store(
                    out + tl.cast(token, tl.int64) * H + start + column, total.to(out.dtype.element_ty), mask=inside
                )
        tl.store(epochs + program, epoch)
