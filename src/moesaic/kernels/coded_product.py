"""`hopper_product` of FP8 codes: out[r] = f(sum of scale * (codes[r] @ codes[e].T) over 128 columns each + bias[e]).

The same persistent program with the same producer; its consumers are those of `hopper_codes.py`, each with half of
a tile's rows. Rows are not gathered: what rounds them spreads them (`spread_codes.py`). Tiles have no spare rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final, no_type_check

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.hopper_codes import consume_codes
from moesaic.kernels.hopper_form import BOX, QUEUED, ROWS, SPARE, TILE_ROWS, WEIGHT_ROWS, CodedForm
from moesaic.kernels.hopper_produce import produce
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.row_order import RowOrder

STAGES, SKEW = 4, 1
"""Blocks of 48 KB in flight, and steps that the second consumer is late: 0 to 2 are alike."""


@final
@dataclass(frozen=True, eq=False)
class Scales:
    """Of both operands. `rows`: float32, [groups of 128 columns, P or more] or [P]. `weights`: [L, blocks of 128 rows,
    of 128 columns], or one a row or a matrix; any float, or E8M0 as bytes. Gate and up are matrices of their own.

    `out`: where the scales of what comes out go if that is codes, [groups of 128 columns, P or more], rounded as
    `RoundedForm.scale` says in `recode`.
    """

    rows: Tensor
    weights: Tensor
    row_groups: bool
    weight_blocks: bool
    weight_rows: bool
    out: Tensor | None = None
    recode: str = ""


def coded_product(
    rows: Tensor,
    weights: Tensor,
    scales: Scales,
    bias: Tensor | None,
    order: RowOrder,
    out: Tensor,
    *,
    counter: int,
    activation: Expression | None = None,
    announce: bool = False,
    after: int = 0,
) -> None:
    """Fill `out` [P, N or N / 2] with the products of `rows` [P, K] and `weights` [L, N, K], both E4M3.

    `out` is bfloat16, float16, or E4M3 with `scales.out`. `order` has no spare rows, and each expert's rows begin at a
    multiple of 32; up to the next one, rows behind an expert's own come back undefined. `counter`, `announce` and
    `after` are those of `hopper_product`.
    """
    experts, width, depth = weights.shape
    form = CodedForm(
        stages=STAGES,
        skew=SKEW,
        bias=bias is not None,
        gated=activation is not None and out.shape[1] != width,
        announce=announce,
        after=after,
        row_groups=scales.row_groups,
        weight_blocks=scales.weight_blocks,
        weight_rows=scales.weight_rows,
        powers=scales.weights.dtype == torch.uint8,
        recode=scales.recode,
        whole=out.shape[1] % (2 * BOX) == 0,
    )
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    out_scales = scales.rows if scales.out is None else scales.out
    _coded_product[(processors,)](
        _descriptor(rows, [SPARE, form.depth]),
        rows,
        _descriptor(weights.view(experts * width, depth), [BOX, form.depth]),
        _beside(scales.rows) if form.row_groups else rows,
        (scales.rows, scales.weights),
        (out_scales, out_scales.stride(0)),
        bias if bias is not None else weights,
        _descriptor(out, [SPARE, 2 * BOX if form.recodes else BOX]),
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


_KINDS = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}


def _descriptor(values: Tensor, box: list[int]) -> Any:
    return TensorDescriptor.from_tensor(values, box, gl.NVMMASharedLayout.get_default_for(box, _KINDS[values.dtype]))


def _beside(scales: Tensor) -> Any:
    """The scales of a tile's rows for one block of columns."""
    return TensorDescriptor.from_tensor(scales, [1, ROWS], gl.NVMMASharedLayout(0, 32, 2))


@gluon.jit
@no_type_check
def _coded_product(
    rows_desc,
    rows,
    weights_desc,
    scales_desc,
    scales,
    out_scales,
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
    HEIGHT: gl.constexpr = TILE_ROWS // 2
    COLUMNS: gl.constexpr = 2 * WEIGHT_ROWS if FORM.recodes else WEIGHT_ROWS
    dtype: gl.constexpr = weights_desc.dtype
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_ROWS, FORM.depth], dtype)
    one: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    a = gl.allocate_shared_memory(dtype, [4 * STAGES, WEIGHT_ROWS, FORM.depth], weights_desc.layout)
    b = gl.allocate_shared_memory(dtype, [STAGES, TILE_ROWS, FORM.depth], tokens)
    if FORM.row_groups:
        c = gl.allocate_shared_memory(gl.float32, [STAGES, 1, TILE_ROWS], scales_desc.layout)
    else:
        c = b
    outputs = gl.allocate_shared_memory(out_desc.dtype, [2, HEIGHT, COLUMNS], out_desc.layout)
    entries = gl.allocate_shared_memory(gl.int64, [2 * QUEUED, 1], one)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [QUEUED, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [QUEUED, 1], mbarrier.MBarrierLayout())
    late = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(free.index(s), count=2)
    for q in gl.static_range(QUEUED):
        mbarrier.init(full.index(q), count=1)
        mbarrier.init(empty.index(q), count=2)
    mbarrier.init(late, count=1)
    # Roles are written out: a tuple held in a variable turns its constants into run-time values (triton 3.6).
    # fmt: off
    gl.warp_specialize(
        [
            (consume_codes, ((out_desc, outputs.index(0)), (a, b, c), (ready, free), late, (entries, full, empty), (bias, constants, scales, out_scales), control, width, depth, 0, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
            (consume_codes, ((out_desc, outputs.index(1)), (a, b, c), (ready, free), late, (entries, full, empty), (bias, constants, scales, out_scales), control, width, depth, 1, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
            (produce, ((rows_desc, rows, 0, rows, scales_desc), weights_desc, tiles, max_tiles, control, width, depth, (a, b, c), (ready, free), (entries, full, empty), COUNTER, FORM)),  # noqa: E501
        ],
        [4, 1],
        [240, 32],
    )
    # fmt: on
