"""`hopper_product` of weights of 4 bits: out[r] = f(rows[r] @ (codes[e] * scales[e]).T + bias[e]), rows in bfloat16.

The same persistent program with the same producer, which copies codes instead of numbers; the consumers of
`hopper_nibbles.py` make numbers of them. Rows are not gathered, and tiles have no spare rows.
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
from moesaic.kernels.hopper_form import BOX, DEPTH, QUEUED, SPARE, TILE_ROWS, WEIGHT_ROWS
from moesaic.kernels.hopper_nibbles import consume_nibbles
from moesaic.kernels.hopper_produce import produce
from moesaic.kernels.launching import wait_for_previous
from moesaic.kernels.nibble_form import NibbleForm
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.stored_experts import Stored

STAGES, SKEW = 4, 2
"""Blocks of 48 KB in flight, and steps that the second consumer is late."""


def nibble_product(
    rows: Tensor,
    stored: Stored,
    bias: Tensor | None,
    order: RowOrder,
    out: Tensor,
    *,
    counter: int,
    activation: Expression | None = None,
    announce: bool = False,
    after: int = 0,
) -> None:
    """Fill `out` [P, N or N / 2] with the products of `rows` [P, K], in its order, and the weights [L, N, K].

    All in bfloat16, the scales too unless they are of 8 bits. `order` has no spare rows, and each expert's rows begin
    at a multiple of 32; up to the next one, rows behind an expert's own come back undefined. `counter`, `announce` and
    `after` are those of `hopper_product`.
    """
    experts, width, bytes_of_row = stored.codes.shape
    scales, whole = _words(stored.scales, DEPTH * 2 // stored.form.tile_columns), stored.global_scales
    form = NibbleForm(
        stages=STAGES,
        skew=SKEW,
        bias=bias is not None,
        gated=activation is not None and out.shape[1] != width,
        announce=announce,
        after=after,
        code=stored.form.code,
        group=stored.form.tile_columns,
        scale="bfloat16" if stored.form.scale == "float" else stored.form.scale,
        word=scales.dtype.itemsize,
        whole=whole is not None,
    )
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    _nibble_product[(processors,)](
        _descriptor(rows, [SPARE, DEPTH], gl.bfloat16),
        rows,
        _descriptor(stored.codes.view(experts * width, bytes_of_row), [BOX, form.weight_depth], gl.uint8),
        scales,
        scales if whole is None else whole,
        bias if bias is not None else rows,
        _descriptor(out, [SPARE, BOX], gl.bfloat16),
        order.tiles,
        order.max_tiles,
        order.control,
        width,
        rows.shape[1],
        activation.constants if activation is not None else (),
        COUNTER=counter,
        EXPRESSION=activation.function if activation is not None else None,
        PER_EXPERT=activation.per_expert if activation is not None else (),
        FORM=form,
        num_warps=4,
        launch_pdl=True,
    )


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _words(scales: Tensor, per_step: int) -> Tensor:
    """Scales [..., groups] as the widest words that the scales of a row, and of a step, are a whole number of."""
    row, step = scales.shape[-1] * scales.itemsize, per_step * scales.itemsize
    size = next(size for size in (4, 2, 1) if row % size == 0 and step % size == 0 and scales.data_ptr() % size == 0)
    return scales.view(_WORDS[size])


def _descriptor(values: Tensor, box: list[int], kind: Any) -> Any:
    return TensorDescriptor.from_tensor(values, box, gl.NVMMASharedLayout.get_default_for(box, kind))


@gluon.jit
@no_type_check
def _nibble_product(
    rows_desc,
    rows,
    weights_desc,
    scales,
    whole,
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
    COLUMNS: gl.constexpr = FORM.depth // FORM.halves
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_ROWS, COLUMNS], gl.bfloat16)
    one: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    a = gl.allocate_shared_memory(gl.uint8, [4 * STAGES, WEIGHT_ROWS, FORM.weight_depth], weights_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [FORM.halves * STAGES, TILE_ROWS, COLUMNS], tokens)
    outputs = gl.allocate_shared_memory(gl.bfloat16, [2, TILE_ROWS // 2, WEIGHT_ROWS], out_desc.layout)
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
            (consume_nibbles, ((out_desc, outputs.index(0)), (a, b, b), (ready, free), late, (entries, full, empty), (bias, constants, scales, whole), control, width, depth, 0, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
            (consume_nibbles, ((out_desc, outputs.index(1)), (a, b, b), (ready, free), late, (entries, full, empty), (bias, constants, scales, whole), control, width, depth, 1, EXPRESSION, PER_EXPERT, FORM)),  # noqa: E501
            (produce, ((rows_desc, rows, 0, rows, rows), weights_desc, tiles, max_tiles, control, width, depth, (a, b, b), (ready, free), (entries, full, empty), COUNTER, FORM)),  # noqa: E501
        ],
        [4, 1],
        [240, 32],
    )
    # fmt: on
