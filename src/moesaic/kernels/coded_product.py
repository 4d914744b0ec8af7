"""`hopper_product` of FP8 codes: out[r] = f(sum of scale * (codes[r] @ codes[e].T) over 128 columns each + bias[e]).

The same persistent program with the same producer; its consumers are those of `hopper_codes.py`, each with half of
a tile's rows. Rows are not gathered: what rounds them spreads them (`spread_codes.py`). Tiles have no spare rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final, no_type_check

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from moesaic.kernels.activation_expressions import Expression
from moesaic.kernels.coded_scales import Scales
from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.hopper_codes import multiply_codes
from moesaic.kernels.hopper_form import BOX, DEPTH, ROWS, SPARE, TILE_ROWS, WEIGHT_ROWS, Pipeline, ProductForm
from moesaic.kernels.hopper_launch import descriptor, launch
from moesaic.kernels.hopper_roles import begin, run_roles
from moesaic.kernels.row_order import RowOrder

SKEWED = Pipeline(stages=4, staged=64, skew=1)
"""The second consumer 0, 1 or 2 steps late is alike."""


@final
@dataclass(frozen=True, kw_only=True)
class CodedForm(ProductForm):
    """Of FP8 codes on both sides.

    `row_groups`: 128 columns of a row share a scale, else the row does. `weight_blocks`: 128 rows and 128 columns of
    weights do, else with `weight_rows` a row, else a matrix. `powers`: scales of weights are E8M0. `recode`: what comes
    out is codes, with scales rounded as `RoundedForm.scale` says; "" for numbers. `whole`: no group of them is short.
    """

    depth: ClassVar[int] = 2 * DEPTH
    weight_depth: ClassVar[int] = 2 * DEPTH
    shared: ClassVar[bool] = True

    pipeline: Pipeline = SKEWED
    weight_blocks: bool
    weight_rows: bool
    powers: bool
    recode: str
    whole: bool

    @property
    def recodes(self) -> bool:
        """Whether what comes out is codes."""
        return self.recode != ""


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
        bias=bias is not None,
        gated=out.shape[1] != width,
        announce=announce,
        after=after,
        row_groups=scales.row_groups,
        weight_blocks=scales.weight_blocks,
        weight_rows=scales.weight_rows,
        powers=scales.weights.dtype == torch.uint8,
        recode=scales.recode,
        whole=out.shape[1] % (2 * BOX) == 0,
    )
    out_scales = scales.rows if scales.out is None else scales.out
    operands = (
        descriptor(rows, [SPARE, form.depth]),
        rows,
        descriptor(weights.view(experts * width, depth), [BOX, form.depth]),
        _beside(scales.rows) if form.row_groups else rows,
        (scales.rows, scales.weights),
        (out_scales, out_scales.stride(0)),
        bias if bias is not None else weights,
        descriptor(out, [SPARE, 2 * BOX if form.recodes else BOX]),
    )
    launch(_coded_product, operands, order, (width, depth), counter=counter, activation=activation, form=form)


def _beside(scales: Tensor) -> Any:
    """The scales of a tile's rows for one block of columns."""
    return TensorDescriptor.from_tensor(scales, [1, ROWS], gl.NVMMASharedLayout(0, 32, 2))


@DirectLaunch
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
    task,
    constants,
    COUNTER: gl.constexpr,
    EXPRESSION: gl.constexpr,
    PER_EXPERT: gl.constexpr,
    FORM: gl.constexpr,
):
    begin(FORM)
    STAGES: gl.constexpr = FORM.pipeline.stages
    COLUMNS: gl.constexpr = 2 * WEIGHT_ROWS if FORM.recodes else WEIGHT_ROWS
    dtype: gl.constexpr = weights_desc.dtype
    tokens: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_ROWS, FORM.depth], dtype)
    a = gl.allocate_shared_memory(dtype, [4 * STAGES, WEIGHT_ROWS, FORM.depth], weights_desc.layout)
    b = gl.allocate_shared_memory(dtype, [STAGES, TILE_ROWS, FORM.depth], tokens)
    if FORM.row_groups:
        c = gl.allocate_shared_memory(gl.float32, [STAGES, 1, TILE_ROWS], scales_desc.layout)
    else:
        c = b
    outputs = gl.allocate_shared_memory(out_desc.dtype, [2, FORM.pipeline.staged, COLUMNS], out_desc.layout)
    source = (rows_desc, rows, 0, rows, scales_desc, weights_desc)
    epilogue = (bias, constants, scales, out_scales)
    run_roles(
        multiply_codes,
        source,
        (a, b, c),
        (out_desc, outputs),
        epilogue,
        task,
        (),
        COUNTER,
        EXPRESSION,
        PER_EXPERT,
        FORM,
    )
