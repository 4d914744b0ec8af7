"""Flags between the same stripes of several ranks: "my rows of this exchange, as far as this step, are in your memory".

A flag is 64 bits: the number of the exchange (15), the steps that are done (16), and the tokens that the rank hands in
(32). Every write to a peer is a store or an exchange that nobody waits for in turn; flags are released and acquired at
system scope, so whoever sees one sees the rows behind it. Flags of even and odd exchanges are apart: a peer that is one
ahead overwrites nothing.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

ALL_STEPS = tl.constexpr(0xFFFF)
"""What is signalled with the last step: it stands for those in which a rank has no tokens, too."""

UNHEARD = tl.constexpr(-1)
"""In place of how often to look: a rank was not heard from."""


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
def number_of(epochs):
    """The number of this program's next exchange."""
    return (tl.load(epochs + tl.program_id(0)) + 1) & 0x7FFF


@triton.jit
@no_type_check
def signal(addresses, epoch, step, count, me, stripe, stripes, N: tl.constexpr, LANES: tl.constexpr):
    """Tell this stripe of every other rank that `step` steps are written. One lane a rank, all at once."""
    tl.debug_barrier()  # all threads' stores come before the release by one of them
    lane = tl.arange(0, LANES)
    other = (lane < N) & (lane != me)
    word = ((epoch % 2) * N + me) * stripes + stripe
    flags = (tl.load(addresses + lane, mask=other, other=0) + word * 8).to(tl.pointer_type(tl.int64))
    value = tl.zeros([LANES], tl.int64) + ((((epoch << 16) | step) << 32) | count)
    tl.atomic_xchg(flags, value, mask=other, sem="release", scope="sys")


@triton.jit
@no_type_check
def _look(flags, other, epoch, step, LANES: tl.constexpr):
    """The flags, and how many ranks have not come as far as this step of this exchange."""
    seen = tl.atomic_add(flags, tl.zeros([LANES], tl.int64), mask=other, sem="acquire", scope="sys")
    come = ((seen >> 48) == epoch) & (((seen >> 32) & 0xFFFF) >= step)
    return seen, tl.sum((other & ~come).to(tl.int32), 0)


@triton.jit
@no_type_check
def await_peers(addresses, epoch, step, me, polls, stripe, stripes, N: tl.constexpr, LANES: tl.constexpr):
    """Wait until this stripe of every other rank has come to `step`. The tokens that each rank stated [LANES], and how
    often to look the next time: never again once a rank was not heard from, which `all_heard` turns into an error.
    """
    lane = tl.arange(0, LANES)
    other = (lane < N) & (lane != me)
    word = ((epoch % 2) * N + lane) * stripes + stripe
    flags = (tl.load(addresses + me) + word * 8).to(tl.pointer_type(tl.int64))
    seen, missing = _look(flags, other, epoch, step, LANES)
    left = polls
    while (missing > 0) & (left > 0):
        seen, missing = _look(flags, other, epoch, step, LANES)
        left -= 1
    tl.debug_barrier()  # what one thread has acquired, all threads may read
    return (seen & 0xFFFFFFFF).to(tl.int32), tl.where(missing > 0, UNHEARD, polls)


@triton.jit
@no_type_check
def all_heard(polls):
    """Ends the kernel of a program to which `await_peers` gave such a `polls`. Last of all, where little is held."""
    tl.device_assert(polls != UNHEARD, "a rank was not heard from: it died, failed, or is slower than Ranks.timeout")
