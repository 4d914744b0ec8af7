"""Flags between the same programs of several ranks: "my rows of this exchange are in your memory, from T tokens".

A flag is 64 bits: the number of the exchange in the upper half, T in the lower. Every write to a peer is a store or an
exchange that nobody waits for in turn; flags are released and acquired at system scope, so whoever sees one sees the
rows behind it. Flags of even and odd exchanges are apart: a peer that is one ahead overwrites nothing.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def row_of(address, number, STRIDE: tl.constexpr, like):
    """Row `number` of rows of STRIDE bytes that begin at `address`, as a pointer such as `like`."""
    return row_in(address, number, STRIDE, like.dtype.element_ty)


@triton.jit
@no_type_check
def row_in(address, number, STRIDE: tl.constexpr, DTYPE: tl.constexpr):
    """The same, as a pointer to DTYPE."""
    pointer = (address + tl.cast(number, tl.int64) * STRIDE).to(tl.pointer_type(DTYPE))
    return tl.multiple_of(pointer, 16)


@triton.jit
@no_type_check
def signal(addresses, epoch, count, me, N: tl.constexpr, LANES: tl.constexpr):
    """Tell the same program of every other rank that this one has written its rows. One lane a rank, all at once."""
    tl.debug_barrier()  # all threads' stores come before the release by one of them
    lane = tl.arange(0, LANES)
    other = (lane < N) & (lane != me)
    word = ((epoch % 2) * N + me) * tl.num_programs(0) + tl.program_id(0)
    flags = (tl.load(addresses + lane, mask=other, other=0) + word * 8).to(tl.pointer_type(tl.int64))
    value = tl.zeros([LANES], tl.int64) + ((epoch << 32) | count)
    tl.atomic_xchg(flags, value, mask=other, sem="release", scope="sys")


@triton.jit
@no_type_check
def _look(flags, other, epoch, LANES: tl.constexpr):
    """The flags, and how many ranks have not come to this exchange."""
    seen = tl.atomic_add(flags, tl.zeros([LANES], tl.int64), mask=other, sem="acquire", scope="sys")
    return seen, tl.sum((other & ((seen >> 32) != epoch)).to(tl.int32), 0)


@triton.jit
@no_type_check
def await_peers(addresses, epoch, me, polls, N: tl.constexpr, LANES: tl.constexpr):
    """Wait until the same program of every other rank has signalled; [LANES]: the tokens that each rank stated."""
    lane = tl.arange(0, LANES)
    other = (lane < N) & (lane != me)
    word = ((epoch % 2) * N + lane) * tl.num_programs(0) + tl.program_id(0)
    flags = (tl.load(addresses + me) + word * 8).to(tl.pointer_type(tl.int64))
    seen, missing = _look(flags, other, epoch, LANES)
    while (missing > 0) & (polls > 0):
        seen, missing = _look(flags, other, epoch, LANES)
        polls -= 1
    tl.device_assert(missing == 0, "a rank was not heard from: it died, failed, or is slower than Ranks.timeout")
    tl.debug_barrier()  # what one thread has acquired, all threads may read
    return (seen & 0xFFFFFFFF).to(tl.int32)
