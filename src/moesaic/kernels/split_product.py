"""`nibble_product` of few rows that are split in two E4M3 numbers each: FP8's tensor cores multiply both with codes.

The same persistent program with the same producer; the consumers of `hopper_split.py` make E4M3 numbers of codes. The
first product splits what comes out for the second.
"""

from __future__ import annotations

from typing import Any, no_type_check

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.hopper_form import BOX, WEIGHT_ROWS
from moesaic.kernels.hopper_launch import descriptor, launch
from moesaic.kernels.hopper_roles import begin, run_roles
from moesaic.kernels.hopper_split import multiply_split
from moesaic.kernels.nibble_scales import boxes_of
from moesaic.kernels.row_order import RowOrder
from moesaic.kernels.split_form import PIECE, ROWS, SplitForm
from moesaic.kernels.split_rows import BLOCK, SplitRows
from moesaic.kernels.stored_experts import Stored


def split_product(
    rows: SplitRows,
    stored: Stored,
    bias: Tensor | None,
    order: RowOrder,
    out: Tensor | SplitRows,
    *,
    columns: int,
    counter: int,
    activation: Expression | None = None,
    announce: bool = False,
    after: int = 0,
) -> None:
    """Fill `out` [P, `columns`], in bfloat16 or split, with the products of `rows` [P, K] and the weights [L, N, K].

    `order` has tiles of 16 rows, no spare ones, and each expert's rows begin at a multiple of 8; up to the next
    one, rows behind an expert's own come back undefined. The other arguments are those of `hopper_product`.
    """
    experts, width, bytes_of_row = stored.codes.shape
    splits = isinstance(out, SplitRows)
    form = SplitForm(
        bias=bias is not None,
        gated=columns != width,
        announce=announce,
        after=after,
        code=stored.form.code,
        group=stored.form.tile_columns,
        scale="bfloat16" if stored.form.scale == "float" else stored.form.scale,
        small=stored.form.small,
        splits=splits,
        whole=columns % BLOCK == 0,
    )
    to = out.codes if isinstance(out, SplitRows) else out
    numbers = out.beside if isinstance(out, SplitRows) else rows.beside
    operands = (
        descriptor(rows.codes, [PIECE, BLOCK]),
        rows.codes,
        _beside(rows.beside, form.beside),
        descriptor(stored.codes.view(experts * width, bytes_of_row), [BOX, form.weight_depth]),
        boxes_of(stored),
        (numbers, numbers.stride(0)),
        bias if bias is not None else rows.codes,
        descriptor(to, [PIECE, BOX]),
    )
    shape = (width, rows.columns)
    launch(_split_product, operands, order, shape, counter=counter, activation=activation, form=form)


def _beside(numbers: Tensor, count: int) -> Any:
    """Those of a tile's rows for one block of columns."""
    return TensorDescriptor.from_tensor(numbers, [count, ROWS], gl.NVMMASharedLayout(0, 32, 2))


@DirectLaunch
@gluon.jit
@no_type_check
def _split_product(
    rows_desc,
    rows,
    beside_desc,
    weights_desc,
    boxes_desc,
    beside,
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
    STAGED: gl.constexpr = 2 * FORM.rows if FORM.splits else FORM.rows
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * FORM.rows, FORM.depth], gl.float8e4nv)
    a = gl.allocate_shared_memory(gl.uint8, [4 * STAGES, WEIGHT_ROWS, FORM.weight_depth], weights_desc.layout)
    b = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 2 * FORM.rows, FORM.depth], tokens)
    c = gl.allocate_shared_memory(gl.float32, [STAGES, FORM.beside, FORM.rows], beside_desc.layout)
    outputs = gl.allocate_shared_memory(out_desc.dtype, [2, STAGED, WEIGHT_ROWS], out_desc.layout)
    boxes = gl.allocate_shared_memory(
        boxes_desc.dtype, [2 * STAGES, 1, boxes_desc.block_type.shape[1]], boxes_desc.layout
    )
    source = (rows_desc, rows, 0, rows, beside_desc, weights_desc, boxes_desc)
    operands, epilogue = (a, b, c, boxes), (bias, constants, beside)
    run_roles(
        multiply_split, source, operands, (out_desc, outputs), epilogue, task, (), COUNTER, EXPRESSION, PER_EXPERT, FORM
    )
