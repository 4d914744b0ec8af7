"""y[r] = f(x[r] @ gate_up[e].T + b1[e]) @ down[e].T + b2[e] for every row r of expert e, streaming the weights.

Each block of weights is read once for all rows of its expert's tile, and the memory is busy at every moment: programs
of the second product fill the tail of the first. On Hopper the second kernel may start as soon as every program of the
first has started (programmatic dependent launch promises no less), and each of its programs waits, on a flag, for its
own tile's rows only. Nobody waits for a program that is not running, so no order of programs is assumed.

A tile holds ROWS rows, and MORE rows beyond them that are computed only where an expert has so many: 128 + 32 takes
139 rows in one pass over the weights. SWAP makes the weights' rows the M of the tensor core's instruction (wgmma needs
64 of them) and tokens its N, which may be as few as 16 (32 under wgmma).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents
from triton.tools.tensor_descriptor import TensorDescriptor

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.row_order import HEADER, RowOrder
from moesaic.kernels.streamed_blocks import down_block, up_block
from moesaic.kernels.whole_numbers import ceil_div

_HEADER = tl.constexpr(HEADER)


@dataclass(frozen=True)
class Blocks:
    """One product's blocks of weights: rows, elements of the inner dimension, and how many are in flight."""

    rows: int
    depth: int
    stages: int


@dataclass(frozen=True)
class Tiling:
    """How `streamed_experts` is cut. `up.rows` counts rows of gate, beside as many of up."""

    rows: int
    more: int
    up: Blocks
    down: Blocks
    warps: int
    swap: bool
    tma: bool

    @property
    def tile_rows(self) -> int:
        """Rows that one tile takes."""
        return self.rows + self.more


def streamed_experts(
    x: Tensor,
    order: RowOrder,
    gate_up: Tensor,
    down: Tensor,
    inner: Tensor,
    out: Tensor,
    *,
    tiling: Tiling,
    activation: Expression,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    top_k: int = 0,
    row_weights: Tensor | None = None,
) -> None:
    """Fill `out` [P, H] with the unweighted results of every row; `inner` [P, I] is overwritten.

    With `top_k` > 0, `x` are the tokens [T, H] and rows of `inner` and `out` are pairs, in the order of the routing;
    `row_weights` [T * K], if given, multiplies a token's row before it is rounded (the router weight on the input).
    Otherwise `x` [P, H] is in the order of `order`, and so are both. Rows without an expert keep what they held.
    """
    _, width, hidden = gate_up.shape
    size = down.shape[2]
    b1, b2 = biases
    overlap = overlap_launches(x.device)
    shared = {
        "K": top_k,
        "H": hidden,
        "I": size,
        "ROWS": tiling.rows,
        "MORE": tiling.more,
        "SWAP": tiling.swap,
        "TMA": tiling.tma,
        "OVERLAP": overlap,
        "num_warps": tiling.warps,
        **({"launch_pdl": True} if overlap else {}),
    }
    _first[(order.max_tiles * ceil_div(size, tiling.up.rows),)](
        x,
        x.stride(0),
        _weights(gate_up, tiling.up, tma=tiling.tma),
        gate_up,
        gate_up if b1 is None else b1,
        inner,
        gate_up if row_weights is None else row_weights,
        order.pairs,
        order.tiles,
        order.control,
        order.max_tiles,
        activation.constants,
        GATED=width != size,
        BIAS=b1 is not None,
        SCALED=row_weights is not None,
        EXPRESSION=activation.function,
        PER_EXPERT=activation.per_expert,
        UP=(tiling.up.rows, tiling.up.depth, tiling.up.stages),
        **shared,
    )
    _second[(order.max_tiles * ceil_div(hidden, tiling.down.rows),)](
        inner,
        _weights(down, tiling.down, tma=tiling.tma),
        down,
        down if b2 is None else b2,
        out,
        order.pairs,
        order.tiles,
        order.control,
        order.max_tiles,
        BIAS=b2 is not None,
        PROGRAMS=ceil_div(size, tiling.up.rows),
        DOWN=(tiling.down.rows, tiling.down.depth, tiling.down.stages),
        **shared,
    )


def _weights(weights: Tensor, blocks: Blocks, *, tma: bool) -> Any:
    if not tma:
        return weights
    flat = weights.view(-1, weights.shape[2])
    return TensorDescriptor.from_tensor(flat, [blocks.rows, blocks.depth])


@triton.jit
@no_type_check
def _flag(at):
    """An acquiring load: polling by an atomic addition would compete with the increments."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];",
        "=r,l",
        [at.to(tl.int64, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@DirectLaunch
@triton.jit(do_not_specialize=["max_tiles"])
@no_type_check
def _first(
    x,
    row_stride,
    desc,
    weights,
    bias,
    inner_rows,
    row_weights,
    pairs,
    tiles,
    control,
    max_tiles,
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
    OVERLAP: tl.constexpr,
):
    PROGRAMS: tl.constexpr = (I + UP[0] - 1) // UP[0]
    wait_for_previous(OVERLAP)
    tile = tl.program_id(0) // PROGRAMS
    column = (tl.program_id(0) % PROGRAMS) * UP[0]
    expert = tl.load(tiles + tile)
    if expert >= 0:
        first = tl.load(tiles + max_tiles + tile)
        stop = tl.load(tiles + 2 * max_tiles + tile)
        if MORE == 0 or stop - first <= ROWS:
            up_block(x, row_stride, desc, weights, bias, inner_rows, row_weights, pairs, first, stop, expert, column, constants, K, H, I, GATED, BIAS, SCALED, EXPRESSION, PER_EXPERT, ROWS, 0, UP, SWAP, TMA)  # noqa: E501  # fmt: skip
        else:
            up_block(x, row_stride, desc, weights, bias, inner_rows, row_weights, pairs, first, stop, expert, column, constants, K, H, I, GATED, BIAS, SCALED, EXPRESSION, PER_EXPERT, ROWS, MORE, UP, SWAP, TMA)  # noqa: E501  # fmt: skip
        if OVERLAP:
            tl.debug_barrier()  # all threads' stores come before the release by one of them
            tl.atomic_add(control + _HEADER + tile, 1, sem="release")


@DirectLaunch
@triton.jit(do_not_specialize=["max_tiles"])
@no_type_check
def _second(
    inner_rows,
    desc,
    weights,
    bias,
    out,
    pairs,
    tiles,
    control,
    max_tiles,
    K: tl.constexpr,
    H: tl.constexpr,
    I: tl.constexpr,
    BIAS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    DOWN: tl.constexpr,
    SWAP: tl.constexpr,
    TMA: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    STRIPS: tl.constexpr = (H + DOWN[0] - 1) // DOWN[0]
    if OVERLAP:
        # Not gdc_wait: that would wait for the end of the first kernel. That its programs have all started, and the
        # order of the rows is written, is what made this one start.
        gdc_launch_dependents()
    tile = tl.program_id(0) // STRIPS
    column = (tl.program_id(0) % STRIPS) * DOWN[0]
    expert = tl.load(tiles + tile)
    if expert >= 0:
        first = tl.load(tiles + max_tiles + tile)
        stop = tl.load(tiles + 2 * max_tiles + tile)
        if OVERLAP:
            while _flag(control + _HEADER + tile) < PROGRAMS:
                pass
            tl.debug_barrier()
        if MORE == 0 or stop - first <= ROWS:
            down_block(inner_rows, desc, weights, bias, out, pairs, first, stop, expert, column, K, H, I, BIAS, ROWS, 0, DOWN, SWAP, TMA)  # noqa: E501  # fmt: skip
        else:
            down_block(inner_rows, desc, weights, bias, out, pairs, first, stop, expert, column, K, H, I, BIAS, ROWS, MORE, DOWN, SWAP, TMA)  # noqa: E501  # fmt: skip
