"""out[t] = sum_k p[t, k] * (f(x[t] @ gate_up[e].T + b1[e]) @ down[e].T + b2[e]), e = ids[t, k], for very few tokens.

Two launches of products of a matrix and a vector, without tensor cores and without any order of rows: each pair reads
its expert's weights by itself. The second kernel sums all K experts of an output column, so the combine is free.
At one token of qwen3-30b 75 MB are read in 23 us (docs/performance/hopper.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.activation_expressions import Expression, evaluate
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.whole_numbers import ceil_div


@dataclass(frozen=True)
class Strip:
    """One product's program: output columns, elements of the inner dimension at a time, loads in flight, warps."""

    columns: int
    depth: int
    stages: int
    warps: int


def vector_experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    inner: Tensor,
    out: Tensor,
    *,
    strips: tuple[Strip, Strip],
    activation: Expression,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    weight_on_input: bool = False,
) -> None:
    """Fill `out` [T, H]; `inner` [T * K, I] is overwritten. A pair whose id is outside [0, E) adds nothing."""
    num_tokens, top_k = topk_ids.shape
    experts, width, hidden = gate_up.shape
    size = down.shape[2]
    first, second = strips
    b1, b2 = biases
    overlap = overlap_launches(x.device)
    dependent = {"OVERLAP": overlap, **({"launch_pdl": True} if overlap else {})}
    _vector_up[(num_tokens * top_k * ceil_div(size, first.columns),)](
        x,
        x.stride(0),
        gate_up,
        gate_up if b1 is None else b1,
        inner,
        topk_ids,
        topk_weights,
        activation.constants,
        E=experts,
        K=top_k,
        H=hidden,
        I=size,
        GATED=width != size,
        BIAS=b1 is not None,
        SCALED=weight_on_input,
        EXPRESSION=activation.function,
        PER_EXPERT=activation.per_expert,
        COLUMNS=first.columns,
        BLOCK=first.depth,
        STAGES=first.stages,
        num_warps=first.warps,
        **dependent,
    )
    _vector_down[(num_tokens, ceil_div(hidden, second.columns))](
        inner,
        down,
        down if b2 is None else b2,
        out,
        topk_ids,
        topk_weights,
        E=experts,
        K=top_k,
        H=hidden,
        I=size,
        BIAS=b2 is not None,
        WEIGHTED=not weight_on_input,
        COLUMNS=second.columns,
        BLOCK=second.depth,
        STAGES=second.stages,
        num_warps=second.warps,
        **dependent,
    )


@triton.jit
@no_type_check
def _scaled(row, scale, SCALED: tl.constexpr):
    """A token's block in float32, rounded as the layer's input is where a weight multiplies it."""
    if SCALED:
        row = (row.to(tl.float32) * scale).to(row.dtype)
    return row.to(tl.float32)[None, :]


@triton.jit
@no_type_check
def _part(at, column, inner, SIZE: tl.constexpr, COLUMNS: tl.constexpr, LENGTH: tl.constexpr):
    """A block of weights in float32; masks only where one can be false."""
    if SIZE % COLUMNS == 0:
        if inner.shape[0] == LENGTH:
            return tl.load(at).to(tl.float32)
        else:
            return tl.load(at, mask=(inner < LENGTH)[None, :], other=0.0).to(tl.float32)
    else:
        return tl.load(at, mask=(column < SIZE)[:, None] & (inner < LENGTH)[None, :], other=0.0).to(tl.float32)


@DirectLaunch
@triton.jit
@no_type_check
def _vector_up(
    x,
    row_stride,
    weights,
    bias,
    inner_rows,
    ids,
    topk_weights,
    constants,
    E: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    EXPRESSION: tl.constexpr,
    PER_EXPERT: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Products are summed over the lanes of a block once, after the loop, which is pipelined by cp.async."""
    STRIPS: tl.constexpr = (I + COLUMNS - 1) // COLUMNS
    WIDTH: tl.constexpr = 2 * I if GATED else I
    pair = tl.program_id(0) // STRIPS
    column = (tl.program_id(0) % STRIPS) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, BLOCK)
    wait_for_previous(OVERLAP)  # and let the second kernel ask for weights as soon as there is a place for it
    expert = tl.load(ids + pair)
    if (expert >= 0) & (expert < E):
        of = weights + expert.to(tl.int64) * (WIDTH * H) + column[:, None] * H + inner[None, :]
        source = x + (pair // K).to(tl.int64) * row_stride + inner
        scale = tl.load(topk_weights + pair) if SCALED else 1.0
        gates = tl.zeros([COLUMNS, BLOCK], tl.float32)
        ups = tl.zeros([COLUMNS, BLOCK], tl.float32)
        # Whole blocks first, without masks; what is left of the row after them.
        for start in tl.range(0, H // BLOCK * BLOCK, BLOCK, num_stages=STAGES):
            row = _scaled(tl.load(source + start), scale, SCALED)
            gates += _part(of + start, column, inner, I, COLUMNS, BLOCK) * row
            if GATED:
                ups += _part(of + start + I * H, column, inner, I, COLUMNS, BLOCK) * row
        LEFT: tl.constexpr = H % BLOCK
        if LEFT > 0:
            start = H - LEFT
            row = _scaled(tl.load(source + start, mask=inner < LEFT, other=0.0), scale, SCALED)
            gates += _part(of + start, column, inner, I, COLUMNS, LEFT) * row
            if GATED:
                ups += _part(of + start + I * H, column, inner, I, COLUMNS, LEFT) * row
        first = tl.sum(gates, 1)
        there = column < I
        at = bias + expert.to(tl.int64) * WIDTH + column
        if BIAS:
            first += tl.load(at, mask=there, other=0.0).to(tl.float32)
        if GATED:
            second = tl.sum(ups, 1)
            if BIAS:
                second += tl.load(at + I, mask=there, other=0.0).to(tl.float32)
            values = evaluate(EXPRESSION, (first, second), constants, PER_EXPERT, expert)
        else:
            values = evaluate(EXPRESSION, (first,), constants, PER_EXPERT, expert)
        # 2^31 inner values are 2^19 pairs of an expert with 4096: a scalar, so that wider costs nothing.
        tl.store(inner_rows + pair.to(tl.int64) * I + column, values.to(inner_rows.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def _down_row(
    inner_rows,
    ids,
    topk_weights,
    token,
    step,
    inner,
    E: tl.constexpr,
    K: tl.constexpr,
    I: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """The inner values that step number `step` multiplies, zero for an inactive pair."""
    STEPS: tl.constexpr = (I + BLOCK - 1) // BLOCK
    pair = token * K + step // STEPS
    start = (step % STEPS) * BLOCK
    expert = tl.load(ids + pair)
    active = (expert >= 0) & (expert < E)
    mask = (inner < I - start) & active
    row = tl.load(inner_rows + pair.to(tl.int64) * I + start + inner, mask=mask, other=0.0).to(tl.float32)
    if WEIGHTED:
        row = row * tl.load(topk_weights + pair, mask=active, other=0.0)
    return row[None, :]


@triton.jit
@no_type_check
def _down_block(
    weights,
    ids,
    token,
    step,
    column,
    inner,
    E: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weights that step number `step` reads, zero for an inactive pair."""
    STEPS: tl.constexpr = (I + BLOCK - 1) // BLOCK
    expert = tl.load(ids + token * K + step // STEPS)
    start = (step % STEPS) * BLOCK
    active = (expert >= 0) & (expert < E)
    of = weights + tl.where(active, expert, 0).to(tl.int64) * (H * I) + column[:, None] * I + (start + inner)[None, :]
    mask = (column < H)[:, None] & ((inner < I - start) & active)[None, :]
    return tl.load(of, mask=mask, other=0.0).to(tl.float32)


@DirectLaunch
@triton.jit
@no_type_check
def _vector_down(
    inner_rows,
    weights,
    bias,
    out,
    ids,
    topk_weights,
    E: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,
    BIAS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One loop over (expert, block) keeps the loads in flight from one expert to the next."""
    STEPS: tl.constexpr = (I + BLOCK - 1) // BLOCK
    token = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, BLOCK)
    # The weights' first block is on its way before the first kernel has ended: it does not depend on it.
    AHEAD: tl.constexpr = 2 if K * STEPS > 1 else 1
    block = _down_block(weights, ids, token, 0, column, inner, E, K, H, I, BLOCK)
    if AHEAD > 1:
        block2 = _down_block(weights, ids, token, 1, column, inner, E, K, H, I, BLOCK)
    wait_for_previous(OVERLAP)
    sums = block * _down_row(inner_rows, ids, topk_weights, token, 0, inner, E, K, I, BLOCK, WEIGHTED)
    if AHEAD > 1:
        sums += block2 * _down_row(inner_rows, ids, topk_weights, token, 1, inner, E, K, I, BLOCK, WEIGHTED)
    for step in tl.range(AHEAD, K * STEPS, num_stages=STAGES):
        row = _down_row(inner_rows, ids, topk_weights, token, step, inner, E, K, I, BLOCK, WEIGHTED)
        sums += _down_block(weights, ids, token, step, column, inner, E, K, H, I, BLOCK) * row
    total = tl.sum(sums, 1)
    if BIAS:
        for slot in tl.static_range(K):
            expert = tl.load(ids + token * K + slot)
            active = (expert >= 0) & (expert < E)
            at = bias + tl.where(active, expert, 0).to(tl.int64) * H + column
            term = tl.load(at, mask=(column < H) & active, other=0.0).to(tl.float32)
            if WEIGHTED:
                term = term * tl.load(topk_weights + token * K + slot, mask=active, other=0.0)
            total += term
    tl.store(out + token.to(tl.int64) * H + column, total.to(out.dtype.element_ty), mask=column < H)
