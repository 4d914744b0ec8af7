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

from typing import Any, no_type_check

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.hopper_consume import consume
from moesaic.kernels.hopper_form import (
    BLOCK_DEPTH,
    BOX,
    DEPTH,
    PIPELINE,
    QUEUED,
    SPARE,
    SPARE_ROWS,
    TILE_ROWS,
    WEIGHT_ROWS,
    Form,
    Pipeline,
)
from moesaic.kernels.hopper_produce import produce
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.row_order import RowOrder


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
    pipeline: Pipeline = PIPELINE,
) -> None:
    """Fill `out` [P, N or N / 2] with the products of `rows` and `weights` [E, N, K], bfloat16 or float16.

    `order` says which rows are whose; `rows` are in its order [P, K], or with `gather` > 0 the tokens [T, K] of which
    row p is number `order.pairs[p] // gather`. `counter` is the slot of `order.control` that the programs draw from:
    zero, and another for each product. An activation with a gate halves the columns. Up to the next multiple of 32,
    rows behind an expert's own come back undefined.

    With `announce`, each tile's flag in `order.control` counts what is stored of it, up to `announcements(...)`. With
    `after` > 0 a tile is read once its flag says so much, and the launch may overlap the one before it, which
    announces: nothing that the launch before still reads may be `out`.
    """
    experts, width, depth = weights.shape
    form = Form(
        pipeline=pipeline,
        gather=gather,
        bias=bias is not None,
        gated=activation is not None and out.shape[1] != width,
        announce=announce,
        after=after,
    )
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    _hopper_product[(processors,)](
        _descriptor(rows, [1 if gather else SPARE, DEPTH]),
        rows,
        rows.stride(0),
        order.pairs,
        _descriptor(weights.view(experts * width, depth), [BOX, DEPTH]),
        bias if bias is not None else weights,
        _descriptor(out, [SPARE, BOX]),
        order.tiles,
        order.max_tiles,
        order.control,
        width,
        depth,
        activation.constants if activation is not None else (),
        COUNTER=counter,
        EXPRESSION=activation.function if activation is not None else None,
        PER_EXPERT=activation.per_expert if activation is not None else (),
        FORM=form,
        num_warps=4,
        launch_pdl=True,
    )


def announcements(columns: int, *, gated: bool) -> int:
    """What a tile's flag says once all `columns` of its rows are stored: one for each consumer and column tile."""
    per_tile = 2 * BOX if gated else 4 * BOX
    return 2 * -(-columns // per_tile)


def _descriptor(values: Tensor, box: list[int]) -> Any:
    kind = gl.bfloat16 if values.dtype == torch.bfloat16 else gl.float16
    return TensorDescriptor.from_tensor(values, box, gl.NVMMASharedLayout.get_default_for(box, kind))


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
    tiles,
    max_tiles,
    control,
    width,
    depth,
    constants,
    COUNTER: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    if FORM.after > 0:
        gdc_launch_dependents()  # what the launch before has stored is told by flags
    else:
        wait_for_previous(True)
    STAGES: gl.constexpr = FORM.stages
    dtype: gl.constexpr = weights_desc.dtype
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_ROWS, BLOCK_DEPTH], dtype)
    few: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SPARE_ROWS, BLOCK_DEPTH], dtype)
    one: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    a = gl.allocate_shared_memory(dtype, [4 * STAGES, WEIGHT_ROWS, BLOCK_DEPTH], weights_desc.layout)
    b = gl.allocate_shared_memory(dtype, [STAGES, TILE_ROWS, BLOCK_DEPTH], tokens)
    c = gl.allocate_shared_memory(dtype, [STAGES, SPARE_ROWS, BLOCK_DEPTH], few)
    outputs = gl.allocate_shared_memory(dtype, [2, FORM.pipeline.staged, WEIGHT_ROWS], out_desc.layout)
    entries = gl.allocate_shared_memory(gl.int64, [2 * QUEUED, 1], one)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [QUEUED, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [QUEUED, 1], mbarrier.MBarrierLayout())
    late = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        # With a gather, 128 threads arrive once their copies have landed, and the expectation of the weights does.
        mbarrier.init(ready.index(s), count=129 if FORM.gather > 0 else 1)
        mbarrier.init(free.index(s), count=2)
    for q in gl.static_range(QUEUED):
        mbarrier.init(full.index(q), count=1)
        mbarrier.init(empty.index(q), count=2)
    mbarrier.init(late, count=1)
    # Roles are written out: a tuple held in a variable turns its constants into run-time values (triton 3.6).
    # fmt: off
    if FORM.gather > 0:
        gl.warp_specialize(
            [
                (consume, ((out_desc, outputs.index(0)), (a, b, c), (ready, free), late, (entries, full, empty), (bias, constants), control, width, depth, 0, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (consume, ((out_desc, outputs.index(1)), (a, b, c), (ready, free), late, (entries, full, empty), (bias, constants), control, width, depth, 1, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (produce, ((rows_desc, rows, row_stride, pairs, rows), weights_desc, tiles, max_tiles, control, width, depth, (a, b, c), (ready, free), (entries, full, empty), COUNTER, FORM)),  # noqa: E501
            ],
            [4, 4],
            [208, 88],
        )
    else:
        gl.warp_specialize(
            [
                (consume, ((out_desc, outputs.index(0)), (a, b, c), (ready, free), late, (entries, full, empty), (bias, constants), control, width, depth, 0, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (consume, ((out_desc, outputs.index(1)), (a, b, c), (ready, free), late, (entries, full, empty), (bias, constants), control, width, depth, 1, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
                (produce, ((rows_desc, rows, row_stride, pairs, rows), weights_desc, tiles, max_tiles, control, width, depth, (a, b, c), (ready, free), (entries, full, empty), COUNTER, FORM)),  # noqa: E501
            ],
            [4, 1],
            [224, 40],
        )
    # fmt: on
