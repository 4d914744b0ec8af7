"""out[r] = f(rows[r] @ weights[e].T + bias[e]) for the rows r of every expert e; f an activation, or nothing.

One persistent program on each multiprocessor of a Hopper GPU, in three roles: a producer that keeps STAGES blocks of
both operands in flight (weights by TMA; rows by TMA, or gathered by cp.async, since TMA does not gather on Hopper), and
two consumers, each a warpgroup with half of the tile's weights. The second starts SKEW steps late, so that one
computes while the other stores. A program draws its next tile from a counter when it is free: tiles in flight stay
neighbours and share their operands in L2 (docs/performance/hopper.md).

Rows of weights are the M of the tensor core's instruction and rows of tokens its N, so that a tile may be as narrow as
its rows: 32, 64, 128 or 160 of them, where tokens as M would pad every expert's last rows to 64. A consumer's block of
weights holds 64 rows of gate and the 64 of up beside them: both sums of a pair end in the registers of one thread, and
weights are read as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final, no_type_check

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from typing_extensions import override

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.hopper_form import (
    BLOCK_DEPTH,
    BOX,
    DEPTH,
    PIPELINE,
    SPARE,
    SPARE_ROWS,
    TILE_ROWS,
    WEIGHT_ROWS,
    Pipeline,
    ProductForm,
)
from moesaic.kernels.hopper_launch import descriptor, launch
from moesaic.kernels.hopper_plain import multiply_plain
from moesaic.kernels.hopper_roles import begin, run_roles
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.slot_sums import SlotSums


@final
@dataclass(frozen=True, kw_only=True)
class PlainForm(ProductForm):
    """Of weights as numbers. A gather by cp.async takes more warps, and more registers."""

    depth: ClassVar[int] = DEPTH
    weight_depth: ClassVar[int] = DEPTH
    spares: ClassVar[bool] = True

    @property
    @override
    def producer_warps(self) -> int:
        return 4 if self.gather else 1

    @property
    @override
    def consumer_registers(self) -> int:
        return 208 if self.gather or self.slots else 224

    @property
    @override
    def producer_registers(self) -> int:
        return 88 if self.gather or self.slots else 40


def hopper_product(
    rows: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    order: RowOrder,
    out: Tensor,
    *,
    counter: int,
    gather: int = 0,
    activation: Expression | None = None,
    announce: bool = False,
    after: int = 0,
    sums: SlotSums | None = None,
    pipeline: Pipeline = PIPELINE,
) -> None:
    """Fill `out` [P, N or N / 2] with the products of `rows` and `weights` [E, N, K], bfloat16 or float16.

    `order` says which rows are whose; `rows` are in its order [P, K], or with `gather` > 0 the tokens [T, K] of which
    row p is number `order.pairs[p] // gather`. `counter` is the slot of `order.control` that the programs draw from:
    zero, and another for each product. An activation with a gate halves the columns. Up to the next multiple of 32,
    rows behind an expert's own come back undefined.

    With `announce`, each tile's flag in `order.control` counts what is stored of it, up to `announcements(...)`. With
    `after` > 0 a tile is read once its flag says so much, and the launch may overlap the one before it, which
    announces: nothing that the launch before still reads may be `out`. With `sums` the rows of every token are summed.
    """
    experts, width, depth = weights.shape
    gated = out.shape[1] != width
    form = PlainForm(
        pipeline=pipeline,
        bias=bias is not None,
        gated=gated,
        announce=announce,
        after=after,
        gather=gather,
        slots=sums.slots if sums is not None else 0,
        weighted=sums is not None and sums.weights is not None,
        column_blocks=sums.blocks if sums is not None else 1,
    )
    operands = (
        descriptor(rows, [1 if gather else SPARE, DEPTH]),
        rows,
        rows.stride(0),
        order.pairs,
        descriptor(weights.view(experts * width, depth), [BOX, DEPTH]),
        bias if bias is not None else weights,
        descriptor(out, [SPARE, BOX]),
        sums.operands(out) if sums is not None else (),
    )
    launch(_hopper_product, operands, order, (width, depth), counter=counter, activation=activation, form=form)


def announcements(columns: int, *, gated: bool) -> int:
    """What a tile's flag says once all `columns` of its rows are stored: one for each consumer and column tile."""
    per_tile = 2 * BOX if gated else 4 * BOX
    return 2 * -(-columns // per_tile)


@DirectLaunch
@gluon.jit
@no_type_check
def _hopper_product(
    rows_desc,
    rows,
    row_stride,
    pairs,
    weights_desc,
    bias,
    out_desc,
    sums,
    task,
    constants,
    COUNTER: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    begin(FORM)
    STAGES: gl.constexpr = FORM.pipeline.stages
    dtype: gl.constexpr = weights_desc.dtype
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_ROWS, BLOCK_DEPTH], dtype)
    few: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SPARE_ROWS, BLOCK_DEPTH], dtype)
    a = gl.allocate_shared_memory(dtype, [4 * STAGES, WEIGHT_ROWS, BLOCK_DEPTH], weights_desc.layout)
    b = gl.allocate_shared_memory(dtype, [STAGES, TILE_ROWS, BLOCK_DEPTH], tokens)
    c = gl.allocate_shared_memory(dtype, [STAGES, SPARE_ROWS, BLOCK_DEPTH], few)
    outputs = gl.allocate_shared_memory(dtype, [2, FORM.pipeline.staged, WEIGHT_ROWS], out_desc.layout)
    source = (rows_desc, rows, row_stride, pairs, rows, weights_desc)
    epilogue = (bias, constants)
    run_roles(
        multiply_plain,
        source,
        (a, b, c),
        (out_desc, outputs),
        epilogue,
        task,
        sums,
        COUNTER,
        EXPRESSION,
        PER_EXPERT,
        FORM,
    )
