"""`hopper_product` of weights of 4 bits: out[r] = f(rows[r] @ (codes[e] * scales[e]).T + bias[e]), rows in bfloat16.

The same persistent program with the same producer, which copies codes instead of numbers; the consumers of
`hopper_nibbles.py` make numbers of them. Rows are not gathered, and tiles have no spare rows.
"""

from __future__ import annotations

from typing import no_type_check

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.hopper_form import BOX, DEPTH, PIPELINE, SPARE, WEIGHT_ROWS
from moesaic.kernels.hopper_launch import descriptor, launch
from moesaic.kernels.hopper_nibbles import multiply_nibbles
from moesaic.kernels.hopper_roles import begin, run_roles
from moesaic.kernels.nibble_form import FEW, NibbleForm
from moesaic.kernels.nibble_scales import boxes_of
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.stored_experts import Stored


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

    All in bfloat16, the scales too unless they are of 8 bits. `order` has tiles of 128 or 32 rows, no spare ones, and
    each expert's rows begin at a multiple of 32; up to the next one, rows behind an expert's own come back undefined.
    `counter`, `announce` and `after` are those of `hopper_product`.
    """
    experts, width, bytes_of_row = stored.codes.shape
    boxes, whole = boxes_of(stored), stored.global_scales
    form = NibbleForm(
        bias=bias is not None,
        gated=out.shape[1] != width,
        announce=announce,
        after=after,
        code=stored.form.code,
        group=stored.form.tile_columns,
        scale="bfloat16" if stored.form.scale == "float" else stored.form.scale,
        planes=stored.form.planes,
        whole=whole is not None,
        small=stored.form.small,
        rows=order.tile_rows,
        pipeline=PIPELINE if order.tile_rows > SPARE else FEW,
    )
    operands = (
        descriptor(rows, [SPARE, DEPTH]),
        rows,
        descriptor(stored.codes.view(experts * width, bytes_of_row), [BOX, form.weight_depth]),
        boxes,
        rows if whole is None else whole,
        bias if bias is not None else rows,
        descriptor(out, [SPARE, BOX]),
    )
    shape = (width, rows.shape[1])
    launch(_nibble_product, operands, order, shape, counter=counter, activation=activation, form=form)


@DirectLaunch
@gluon.jit
@no_type_check
def _nibble_product(
    rows_desc,
    rows,
    weights_desc,
    boxes_desc,
    whole,
    bias,
    out_desc,
    task,
    constants,
    COUNTER: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    begin(FORM)
    STAGES: gl.constexpr = FORM.pipeline.stages
    COLUMNS: gl.constexpr = FORM.depth // FORM.halves
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([FORM.rows, COLUMNS], gl.bfloat16)
    a = gl.allocate_shared_memory(gl.uint8, [4 * STAGES, WEIGHT_ROWS, FORM.weight_depth], weights_desc.layout)
    b = gl.allocate_shared_memory(gl.bfloat16, [FORM.halves * STAGES, FORM.rows, COLUMNS], tokens)
    outputs = gl.allocate_shared_memory(gl.bfloat16, [2, FORM.pipeline.staged, WEIGHT_ROWS], out_desc.layout)
    boxes = gl.allocate_shared_memory(
        boxes_desc.dtype, [2 * STAGES, 1, boxes_desc.block_type.shape[1]], boxes_desc.layout
    )
    source = (rows_desc, rows, 0, rows, rows, weights_desc, boxes_desc)
    operands, epilogue = (a, b, b, boxes), (bias, constants, whole)
    run_roles(
        multiply_nibbles,
        source,
        operands,
        (out_desc, outputs),
        epilogue,
        task,
        (),
        COUNTER,
        EXPRESSION,
        PER_EXPERT,
        FORM,
    )
