"""What one program of a streamed product computes: some columns of the results of one tile of rows."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.activation_expressions import evaluate
from moesaic.kernels.row_tiles import across, load_bias, load_rows, multiply, owners, scaled, store_rows, sums_of


@triton.jit
@no_type_check
def _block(at, desc, row, inner, start, there, DEPTH: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        return desc.load([row, start])
    elif WHOLE:
        return tl.load(at + start, eviction_policy="evict_first")
    else:
        mask = there & (inner < DEPTH - start)[None, :]
        return tl.load(at + start, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
@no_type_check
def up_block(
    x,
    row_stride,
    desc,
    weights,
    bias,
    inner_rows,
    row_weights,
    pairs,
    first,
    stop,
    expert,
    start_column,
    constants,
    K: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    EXPRESSION: tl.constexpr,
    PER_EXPERT: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    UP: tl.constexpr,
    SWAP: tl.constexpr,
    TMA: tl.constexpr,
):
    """Columns of the inner rows of one tile: gate and up in one program, so that the activation costs no traffic."""
    HEIGHT: tl.constexpr = UP[0]
    BLOCK: tl.constexpr = UP[1]
    WIDTH: tl.constexpr = 2 * I if GATED else I
    WHOLE: tl.constexpr = H % BLOCK == 0 and I % HEIGHT == 0
    inner = tl.arange(0, BLOCK)
    column = start_column + tl.arange(0, HEIGHT)
    source, target, live = owners(pairs, first, stop, 0, ROWS, K)
    at = x + source[:, None].to(tl.int64) * row_stride + inner[None, :]
    scale = tl.load(row_weights + target, mask=live, other=0.0) if SCALED else 0.0
    gate = sums_of(ROWS, HEIGHT, SWAP)
    up = sums_of(ROWS, HEIGHT, SWAP)
    if MORE > 0:
        source2, target2, live2 = owners(pairs, first, stop, ROWS, MORE, K)
        at2 = x + source2[:, None].to(tl.int64) * row_stride + inner[None, :]
        scale2 = tl.load(row_weights + target2, mask=live2, other=0.0) if SCALED else 0.0
        gate2 = sums_of(MORE, HEIGHT, SWAP)
        up2 = sums_of(MORE, HEIGHT, SWAP)
    # int64 for the expert's begin only: all experts' weights pass 2^31 elements (gpt-oss), one expert's do not.
    of = weights + expert.to(tl.int64) * (WIDTH * H) + column[:, None] * H + inner[None, :]
    row = expert * WIDTH + start_column
    there = (column < I)[:, None]
    for start in tl.range(0, H, BLOCK, num_stages=UP[2]):
        rows = scaled(load_rows(at, inner, start, live, H, BLOCK, False), scale, SCALED)
        if MORE > 0:
            rows2 = scaled(load_rows(at2, inner, start, live2, H, BLOCK, False), scale2, SCALED)
        block = _block(of, desc, row, inner, start, there, H, WHOLE, TMA)
        gate = multiply(block, rows, gate, SWAP)
        if MORE > 0:
            gate2 = multiply(block, rows2, gate2, SWAP)
        if GATED:
            block2 = _block(of + I * H, desc, row + I, inner, start, there, H, WHOLE, TMA)
            up = multiply(block2, rows, up, SWAP)
            if MORE > 0:
                up2 = multiply(block2, rows2, up2, SWAP)
    if BIAS:
        term = across(load_bias(bias, expert, column, WIDTH, 0, I), SWAP)
        gate += term
        if MORE > 0:
            gate2 += term
        if GATED:
            term2 = across(load_bias(bias, expert, column, WIDTH, I, I), SWAP)
            up += term2
            if MORE > 0:
                up2 += term2
    if GATED:
        values = evaluate(EXPRESSION, (gate, up), constants, PER_EXPERT, expert)
    else:
        values = evaluate(EXPRESSION, (gate,), constants, PER_EXPERT, expert)
    store_rows(inner_rows, values, target, live, column, I, SWAP)
    if MORE > 0:
        if GATED:
            values2 = evaluate(EXPRESSION, (gate2, up2), constants, PER_EXPERT, expert)
        else:
            values2 = evaluate(EXPRESSION, (gate2,), constants, PER_EXPERT, expert)
        store_rows(inner_rows, values2, target2, live2, column, I, SWAP)


@triton.jit
@no_type_check
def down_block(
    inner_rows,
    desc,
    weights,
    bias,
    out,
    pairs,
    first,
    stop,
    expert,
    start_column,
    K: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    DOWN: tl.constexpr,
    SWAP: tl.constexpr,
    TMA: tl.constexpr,
):
    """Columns of the results of one tile."""
    HEIGHT: tl.constexpr = DOWN[0]
    BLOCK: tl.constexpr = DOWN[1]
    WHOLE: tl.constexpr = I % BLOCK == 0 and H % HEIGHT == 0
    inner = tl.arange(0, BLOCK)
    column = start_column + tl.arange(0, HEIGHT)
    _, target, live = owners(pairs, first, stop, 0, ROWS, K)
    at = inner_rows + target[:, None].to(tl.int64) * I + inner[None, :]
    sums = sums_of(ROWS, HEIGHT, SWAP)
    if MORE > 0:
        _, target2, live2 = owners(pairs, first, stop, ROWS, MORE, K)
        at2 = inner_rows + target2[:, None].to(tl.int64) * I + inner[None, :]
        sums2 = sums_of(MORE, HEIGHT, SWAP)
    of = weights + expert.to(tl.int64) * (H * I) + column[:, None] * I + inner[None, :]
    there = (column < H)[:, None]
    for start in tl.range(0, I, BLOCK, num_stages=DOWN[2]):
        # Past L1: the rows were written in this launch, by another multiprocessor.
        rows = load_rows(at, inner, start, live, I, BLOCK, True)
        if MORE > 0:
            rows2 = load_rows(at2, inner, start, live2, I, BLOCK, True)
        block = _block(of, desc, expert * H + start_column, inner, start, there, I, WHOLE, TMA)
        sums = multiply(block, rows, sums, SWAP)
        if MORE > 0:
            sums2 = multiply(block, rows2, sums2, SWAP)
    if BIAS:
        term = across(load_bias(bias, expert, column, H, 0, H), SWAP)
        sums += term
        if MORE > 0:
            sums2 += term
    store_rows(out, sums, target, live, column, H, SWAP)
    if MORE > 0:
        store_rows(out, sums2, target2, live2, column, H, SWAP)
