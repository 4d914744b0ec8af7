"""out[t] = sum_k p[t, k] * rows[places[t, k]] in float32, by the product that makes the rows, while it makes others.

The product goes through its columns in a few blocks, one after another for all rows: once a block is stored, its
columns of all tokens can be summed while the tensor cores are at the next one. Two warps of each program do that beside
its other roles, with as many loads in flight as their registers take; what is left when the last tile is stored, the
last block at least, is summed by consumers too. Nobody waits for a sum, so that a slow one costs nothing but its rest.

Sums are those of `combine_rows.py`, in the order of the slots, whoever makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final, no_type_check

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from moesaic.kernels.hopper_form import WEIGHT_ROWS
from moesaic.kernels.hopper_queue import flag
from moesaic.kernels.row_order import BLOCKS_AT

SUMMED = 16
"""Tokens of a job, times how many a warp sums at once; its columns are those of a tile."""

_SUMMED, _BLOCKS_AT = gl.constexpr(SUMMED), gl.constexpr(BLOCKS_AT)
_JOBS = gl.constexpr(3)
"""The counter that jobs are drawn from."""


@final
@dataclass(frozen=True, eq=False)
class SlotSums:
    """`out` [T, H] gets the sums of the rows `places` [T * K] of every token, -1 for none, times `weights` [T, K].

    `blocks` of columns are made one after another.
    """

    out: Tensor
    places: Tensor
    weights: Tensor | None
    blocks: int

    @property
    def slots(self) -> int:
        """K."""
        return self.places.shape[0] // self.out.shape[0]

    def operands(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """What a kernel takes that makes `rows` [P, H]."""
        weights = rows if self.weights is None else self.weights
        return rows, self.out, self.places, weights, self.out.shape[0]


@gluon.jit
@no_type_check
def sum_slots(sums, control, width, FORM: gl.constexpr):
    """Draws jobs, of some tokens and the columns of a tile each, until there are no more."""
    tokens = sums[4]
    COLUMNS: gl.constexpr = 4 * WEIGHT_ROWS
    JOB: gl.constexpr = _SUMMED * FORM.tokens_at_once
    groups = gl.cdiv(tokens, JOB)
    num_n = gl.cdiv(width, COLUMNS)
    per_block = gl.cdiv(num_n, FORM.column_blocks)
    tiles = gl.load(control)
    job = gl.atomic_add(control + _JOBS, 1, sem="relaxed")
    while job < groups * num_n:
        column = job // groups
        block = column // per_block
        stored = 2 * tiles * gl.minimum(per_block, num_n - block * per_block)
        while flag(control + _BLOCKS_AT + block) < stored:
            gl.inline_asm_elementwise("nanosleep.u32 200; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        _sum(sums, (job - column * groups) * JOB, column * COLUMNS, width, FORM)
        job = gl.atomic_add(control + _JOBS, 1, sem="relaxed")


@gluon.jit
@no_type_check
def _sum(sums, first, at, width, FORM: gl.constexpr):
    """Of some tokens the columns `at` and up, of a few tokens and slots at once."""
    rows, out, places, weights, tokens = sums
    K: gl.constexpr = FORM.slots
    SLOTS: gl.constexpr = FORM.slots_at_once
    EACH: gl.constexpr = FORM.tokens_at_once
    CHUNKS: gl.constexpr = (K + SLOTS - 1) // SLOTS
    TOKENS: gl.constexpr = gl.num_warps() * EACH
    layout: gl.constexpr = gl.BlockedLayout([EACH, SLOTS, 8], [1, 1, 32], [gl.num_warps(), 1, 1], [2, 1, 0])
    summed: gl.constexpr = gl.SliceLayout(1, layout)
    token = gl.arange(0, TOKENS, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None]
    slot = gl.arange(0, SLOTS, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :]
    column = (
        at + gl.arange(0, 4 * WEIGHT_ROWS, layout=gl.SliceLayout(0, gl.SliceLayout(0, layout)))[None, :][None, :, :]
    )
    to = first + gl.arange(0, TOKENS, layout=gl.SliceLayout(1, summed))
    there = at + gl.arange(0, 4 * WEIGHT_ROWS, layout=gl.SliceLayout(0, summed))
    place = _places(places, first + token, slot, tokens, K)
    total = gl.zeros([TOKENS, 4 * WEIGHT_ROWS], gl.float32, summed)
    for n in range(_SUMMED * EACH // TOKENS * CHUNKS):
        begin = first + n // CHUNKS * TOKENS
        chunk = n % CHUNKS * SLOTS
        row = place
        after = n + 1
        place = _places(places, first + after // CHUNKS * TOKENS + token, after % CHUNKS * SLOTS + slot, tokens, K)
        live = row >= 0
        source = rows + row.to(gl.int64)[:, :, None] * width + column
        value = gl.load(source, mask=live[:, :, None] & (column < width), other=0.0).to(gl.float32)
        if FORM.weighted:
            which = (begin + token).to(gl.int64) * K + chunk + slot
            value = value * gl.load(weights + which, mask=live, other=0.0).to(gl.float32)[:, :, None]
        part = gl.sum(value, axis=1)
        total = part + gl.where(chunk == 0, 0.0, total) if CHUNKS > 1 else part
        mine = begin - first + to
        mask = (mine < tokens)[:, None] & (there < width)[None, :] & (chunk + SLOTS >= K)
        gl.store(out + mine.to(gl.int64)[:, None] * width + there[None, :], total.to(out.dtype.element_ty), mask=mask)


@gluon.jit
@no_type_check
def _places(places, token, slot, tokens, K: gl.constexpr):
    """Of these tokens' slots the rows, -1 for none."""
    return gl.load(places + token.to(gl.int64) * K + slot, mask=(token < tokens) & (slot < K), other=-1)
