"""y[r] = f(x[r] @ gate_up[e].T + b1[e]) @ down[e].T + b2[e] for every row r of expert e, with weights as stored.

As `streamed_experts`, without spare rows and with two launches in turn, but each block of weights is read as codes and
becomes numbers in registers. Where 128 columns share a scale, sums of 128 products are scaled; where fewer do, the
weights are. Rows that have a format too were rounded before (`round_rows.py`), and may come as codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from moesaic.kernels.activation_expressions import Expression, evaluate
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.row_tiles import across, load_bias, owners, store_rows, sums_of
from moesaic.kernels.stored_blocks import add_products, finish, load_columns, scale_of_rows
from moesaic.kernels.stored_form import StoredForm
from moesaic.kernels.whole_numbers import ceil_div


@final
@dataclass(frozen=True, eq=False)
class Stored:
    """One projection: codes and scales as bytes and numbers, matrices one after another, and how they are read.

    `zero_points`: less 8, as numbers of the rows' dtype, since codes of 4 bits are read as q - 8.
    """

    form: StoredForm
    codes: Tensor
    scales: Tensor
    zero_points: Tensor | None
    global_scales: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As a kernel takes them; what is not there is never read."""
        zeros = self.codes if self.zero_points is None else self.zero_points
        return self.codes, self.scales, zeros, self.codes if self.global_scales is None else self.global_scales

    def blocks(self, rows: int, *, tma: bool) -> Any:
        """What TMA copies blocks of `rows` rows with; without it something that is never read."""
        if not tma:
            return self.codes
        flat = self.codes.view(-1, self.codes.shape[-1])
        return TensorDescriptor.from_tensor(flat, [rows, self.form.width])


@final
@dataclass(frozen=True)
class StoredTiling:
    """`rows` of x in a tile; rows of gate (and of up beside them) and of down in a program; blocks in flight."""

    rows: int
    up: int
    down: int
    stages: int
    warps: int
    swap: bool
    tma: bool = False


def fast_codes(device: torch.device) -> bool:
    """Whether `device` has FP8 numbers, and two bfloat16 numbers in an instruction."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def stored_up(
    x: Tensor,
    order: RowOrder,
    gate_up: Stored,
    bias: Tensor | None,
    inner: Tensor,
    *,
    tiling: StoredTiling,
    activation: Expression,
    source: tuple[int, Tensor | None],
    x_scales: Tensor | None = None,
) -> None:
    """Fill `inner` [P, I] with the activation of the first product.

    `source`: with (K, weights) rows of `inner` are pairs and row p reads row p // K of x, times `weights[p]` if there
    are any; with (0, None) rows of x and of `inner` lie in the order of `order`. `x_scales` [_, G]: x are codes.
    """
    size, hidden = inner.shape[1], x.shape[1]
    shares, row_weights = source
    overlap = overlap_launches(x.device)
    _up[(order.max_tiles * ceil_div(size, tiling.up),)](
        x,
        x.stride(0),
        x if x_scales is None else x_scales,
        gate_up.tensors,
        gate_up.blocks(tiling.up, tma=tiling.tma),
        x if bias is None else bias,
        inner,
        x if row_weights is None else row_weights,
        order.pairs,
        order.tiles,
        order.max_tiles,
        activation.constants,
        K=shares,
        H=hidden,
        I=size,
        GATED=gate_up.codes.shape[1] != size,
        BIAS=bias is not None,
        SCALED=row_weights is not None,
        EXPRESSION=activation.function,
        PER_EXPERT=activation.per_expert,
        FORM=gate_up.form,
        FAST=fast_codes(x.device),
        GROUPS=0 if x_scales is None else x_scales.shape[1],
        TILING=tiling,
        OVERLAP=overlap,
        num_warps=tiling.warps,
        **({"launch_pdl": True} if overlap else {}),
    )


def stored_down(
    inner: Tensor,
    order: RowOrder,
    down: Stored,
    bias: Tensor | None,
    out: Tensor,
    *,
    tiling: StoredTiling,
    pairs: bool,
    inner_scales: Tensor | None = None,
) -> None:
    """Fill `out` [P, H] with the second product of every row of `inner` [P, I]; `pairs`: rows are pairs.

    `inner_scales` [P, G]: rows are codes.
    """
    size, hidden = inner.shape[1], out.shape[1]
    overlap = overlap_launches(inner.device)
    _down[(order.max_tiles * ceil_div(hidden, tiling.down),)](
        inner,
        inner if inner_scales is None else inner_scales,
        down.tensors,
        down.blocks(tiling.down, tma=tiling.tma),
        inner if bias is None else bias,
        out,
        order.pairs,
        order.tiles,
        order.max_tiles,
        K=1 if pairs else 0,
        H=hidden,
        I=size,
        BIAS=bias is not None,
        FORM=down.form,
        FAST=fast_codes(inner.device),
        GROUPS=0 if inner_scales is None else inner_scales.shape[1],
        TILING=tiling,
        OVERLAP=overlap,
        num_warps=tiling.warps,
        **({"launch_pdl": True} if overlap else {}),
    )


@DirectLaunch
@triton.jit(do_not_specialize=["max_tiles"])
@no_type_check
def _up(
    x, row_stride, x_scales, stored, desc, bias, inner_rows, row_weights, pairs, tiles, max_tiles, constants,
    K: tl.constexpr, H: tl.constexpr, I: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr,
    EXPRESSION: tl.constexpr, PER_EXPERT: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr,
    TILING: tl.constexpr, GROUPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    PROGRAMS: tl.constexpr = (I + TILING.up - 1) // TILING.up
    PARTS: tl.constexpr = 2 if GATED else 1
    SWAP: tl.constexpr = TILING.swap
    wait_for_previous(OVERLAP)
    tile = tl.program_id(0) // PROGRAMS
    expert = tl.load(tiles + tile)
    if expert >= 0:
        first = tl.load(tiles + max_tiles + tile)
        stop = tl.load(tiles + 2 * max_tiles + tile)
        column = (tl.program_id(0) % PROGRAMS) * TILING.up + tl.arange(0, TILING.up)
        source, target, live = owners(pairs, first, stop, 0, TILING.rows, K)
        scale = tl.load(row_weights + target, mask=live, other=0.0) if SCALED else 0.0
        gate = sums_of(TILING.rows, TILING.up, SWAP)
        up = sums_of(TILING.rows, TILING.up, SWAP)
        matrix = expert * PARTS
        for start in tl.range(0, H, FORM.block, num_stages=TILING.stages):
            low, high = load_columns(x, row_stride, source, live, start, scale, H, SCALED, FORM)
            of = scale_of_rows(x_scales, source, live, start, GROUPS)
            gate = add_products(
                gate, stored, desc, matrix, column, start, low, high, of, I, H, FORM, FAST, SWAP,
                GROUPS > 0, TILING.tma,
            )  # fmt: skip
            if GATED:
                up = add_products(
                    up, stored, desc, matrix + 1, column, start, low, high, of, I, H, FORM, FAST, SWAP,
                    GROUPS > 0, TILING.tma,
                )  # fmt: skip
        gate = finish(gate, stored, matrix, column, I, H, FORM, SWAP)
        if BIAS:
            gate += across(load_bias(bias, expert, column, PARTS * I, 0, I), SWAP)
        if GATED:
            up = finish(up, stored, matrix + 1, column, I, H, FORM, SWAP)
            if BIAS:
                up += across(load_bias(bias, expert, column, PARTS * I, I, I), SWAP)
            values = evaluate(EXPRESSION, (gate, up), constants, PER_EXPERT, expert)
        else:
            values = evaluate(EXPRESSION, (gate,), constants, PER_EXPERT, expert)
        store_rows(inner_rows, values, target, live, column, I, SWAP)


@DirectLaunch
@triton.jit(do_not_specialize=["max_tiles"])
@no_type_check
def _down(
    inner_rows, inner_scales, stored, desc, bias, out, pairs, tiles, max_tiles,
    K: tl.constexpr, H: tl.constexpr, I: tl.constexpr, BIAS: tl.constexpr, FORM: tl.constexpr, FAST: tl.constexpr,
    TILING: tl.constexpr, GROUPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    STRIPS: tl.constexpr = (H + TILING.down - 1) // TILING.down
    SWAP: tl.constexpr = TILING.swap
    wait_for_previous(OVERLAP)
    tile = tl.program_id(0) // STRIPS
    expert = tl.load(tiles + tile)
    if expert >= 0:
        first = tl.load(tiles + max_tiles + tile)
        stop = tl.load(tiles + 2 * max_tiles + tile)
        column = (tl.program_id(0) % STRIPS) * TILING.down + tl.arange(0, TILING.down)
        source, target, live = owners(pairs, first, stop, 0, TILING.rows, K)
        sums = sums_of(TILING.rows, TILING.down, SWAP)
        for start in tl.range(0, I, FORM.block, num_stages=TILING.stages):
            low, high = load_columns(inner_rows, I, source, live, start, 0.0, I, False, FORM)
            of = scale_of_rows(inner_scales, source, live, start, GROUPS)
            sums = add_products(
                sums, stored, desc, expert, column, start, low, high, of, H, I, FORM, FAST, SWAP, GROUPS > 0, TILING.tma
            )
        sums = finish(sums, stored, expert, column, H, I, FORM, SWAP)
        if BIAS:
            sums += across(load_bias(bias, expert, column, H, 0, H), SWAP)
        store_rows(out, sums, target, live, column, H, SWAP)
