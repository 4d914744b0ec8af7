"""What products of a tile of rows and a block of weights are made of; SWAP makes the weights' rows the M of a dot."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def sums_of(N: tl.constexpr, ROWS: tl.constexpr, SWAP: tl.constexpr):
    """Zeros for the products of N rows with ROWS rows of weights."""
    if SWAP:
        return tl.zeros([ROWS, N], tl.float32)
    else:
        return tl.zeros([N, ROWS], tl.float32)


@triton.jit
@no_type_check
def multiply(weights, rows, sums, SWAP: tl.constexpr):
    """`sums` and the products of a block of weights `[ROWS, D]` with rows `[N, D]`."""
    if SWAP:
        return tl.dot(weights, rows.T, sums, out_dtype=sums.dtype)
    else:
        return tl.dot(rows, weights.T, sums, out_dtype=sums.dtype)


@triton.jit
@no_type_check
def across(values, SWAP: tl.constexpr):
    """One value for each of the weights' rows, to be added to sums."""
    if SWAP:
        return values[:, None]
    else:
        return values[None, :]


@triton.jit
@no_type_check
def owners(pairs, first, stop, OFFSET: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The rows of x, of what is computed, and which of the N are there."""
    row = first + OFFSET + tl.arange(0, N)
    live = row < stop
    if K > 0:
        pair = tl.load(pairs + row, mask=live, other=0)
        return pair // K, pair, live
    else:
        row = tl.where(live, row, first)
        return row, row, live


@triton.jit
@no_type_check
def load_rows(at, inner, start, live, DEPTH: tl.constexpr, BLOCK: tl.constexpr, PAST_L1: tl.constexpr):
    """A block of D elements of each row, zeros for rows that are not `live` and behind the end."""
    mask = live[:, None] if DEPTH % BLOCK == 0 else live[:, None] & (inner < DEPTH - start)[None, :]
    return tl.load(at + start, mask=mask, other=0.0, cache_modifier=".cg" if PAST_L1 else "")


@triton.jit
@no_type_check
def scaled(rows, weights, SCALED: tl.constexpr):
    """Rows times one weight each, rounded as the rows are."""
    if SCALED:
        return (rows.to(tl.float32) * weights[:, None]).to(rows.dtype)
    else:
        return rows


@triton.jit
@no_type_check
def load_bias(bias, expert, column, WIDTH: tl.constexpr, OFFSET: tl.constexpr, COLUMNS: tl.constexpr):
    """The terms of one expert for `column`, in float32."""
    at = bias + expert.to(tl.int64) * WIDTH + OFFSET + column
    return tl.load(at, mask=column < COLUMNS, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def store_rows(out, values, row, live, column, COLUMNS: tl.constexpr, SWAP: tl.constexpr):
    """The `values` of rows that are `live`, at `row`."""
    values = values.to(out.dtype.element_ty)
    if SWAP:
        values = values.T
    at = out + row[:, None].to(tl.int64) * COLUMNS + column[None, :]
    tl.store(at, values, mask=live[:, None] & (column < COLUMNS)[None, :])
