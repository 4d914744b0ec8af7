"""Many rows on Hopper, FP8 on both sides: rows rounded to codes as they are spread, two grouped products, a sum."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moesaic.backends.hopper_products import ALIGNMENT
from moesaic.backends.ordered_products import OrderedProducts
from moesaic.backends.stored_products import order_bytes
from moesaic.backends.stored_weights import StoredProjection, StoredWeights
from moesaic.batches import GroupedBatch, Routing
from moesaic.problem import Problem

if TYPE_CHECKING:
    from moesaic.kernels.coded_scales import Scales
    from moesaic.kernels.rounded_form import RoundedForm
    from moesaic.kernels.row_order import RowOrder

BLOCK = 128
"""Rows and columns of a block of weights that share a scale, and columns of a row."""

STEP = 16
"""TMA copies rows that begin at multiples of 16 bytes."""


def multiplies_codes(problem: Problem) -> bool:
    """Whether the products take this scheme: FP8 on both sides, scales of 128 columns or of all in any mixture."""
    from moesaic.backends.format_forms import rounded_form, stored_form  # noqa: PLC0415

    weights, inputs = stored_form(problem.scheme.weights), rounded_form(problem.scheme.inputs)
    if weights is None or inputs is None or problem.hidden_size % STEP or problem.intermediate_size % STEP:
        return False
    tile = (weights.tile_rows, weights.tile_columns)
    held = weights.code == "e4m3" and tile in ((BLOCK, BLOCK), (1, 0), (0, 0)) and not weights.global_scale
    return held and inputs.code == "e4m3" and inputs.columns in (0, BLOCK) and not inputs.shared


def coded_tokens(hidden_states: Tensor, routing: Routing, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Tokens `[T, H]`, summed over their slots."""
    return _products(prepared, problem).of_tokens(hidden_states, routing, problem)


def coded_rows(batch: GroupedBatch, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Rows that lie in expert order already, at multiples of 32, in place."""
    return _products(prepared, problem).of_rows(batch, problem)


def _products(prepared: StoredWeights, problem: Problem) -> OrderedProducts[tuple[Tensor, Tensor]]:
    from moesaic.kernels.hopper_form import ROWS  # noqa: PLC0415
    from moesaic.kernels.spread_codes import spread_codes  # noqa: PLC0415

    spread = partial(spread_codes, form=_inputs(prepared))
    return OrderedProducts(ROWS, ALIGNMENT, spread, partial(_multiply, prepared=prepared, problem=problem))


def coded_bytes(problem: Problem, num_rows: int) -> int:
    """The most that one call allocates."""
    pairs = num_rows * problem.top_k if problem.layout.has_routing else num_rows
    rows = pairs + (ALIGNMENT - 1) * min(problem.num_experts, pairs) + ALIGNMENT
    hidden, inner, size = problem.hidden_size, problem.intermediate_size, problem.dtype.itemsize
    scales = 4 * (hidden // BLOCK + inner // BLOCK + 2)
    copies = 2 * size * num_rows * hidden
    return (
        rows * (hidden * (1 + size) + inner * (1 + size) + scales) + copies + order_bytes(problem, pairs, rows) + 16384
    )


def _multiply(
    codes: tuple[Tensor, Tensor], order: RowOrder, results: Tensor, *, prepared: StoredWeights, problem: Problem
) -> None:
    """Both products. Where 128 columns share a scale the first one rounds what it stores, and the second begins while
    it ends; where a row does, the row has to be there before.
    """
    from moesaic.kernels.coded_product import coded_product  # noqa: PLC0415
    from moesaic.kernels.hopper_product import announcements  # noqa: PLC0415
    from moesaic.kernels.spread_codes import spread_codes  # noqa: PLC0415

    rows, scales = codes
    form, gated = _inputs(prepared), problem.width != problem.intermediate_size
    fused = form.columns == BLOCK
    inner = results.new_empty(rows.shape[0], problem.intermediate_size, dtype=rows.dtype if fused else results.dtype)
    beside = scales.new_empty(-(-problem.intermediate_size // BLOCK), scales.shape[1]) if fused else None
    coded_product(
        rows,
        _matrices(prepared.gate_up),
        _scales(prepared.gate_up, scales, prepared, beside),
        prepared.gate_up_bias,
        order,
        inner,
        counter=1,
        activation=prepared.expression,
        announce=fused,
    )
    stored = announcements(problem.intermediate_size, gated=gated) if fused else 0
    if beside is None:
        inner, beside = spread_codes(inner, None, None, 1, inner.shape[0], form)
    down = _scales(prepared.down, beside, prepared)
    coded_product(inner, _matrices(prepared.down), down, prepared.down_bias, order, results, counter=2, after=stored)


def _inputs(prepared: StoredWeights) -> RoundedForm:
    assert prepared.inputs is not None  # noqa: S101 (`multiplies_codes` was asked)
    return prepared.inputs


def _matrices(projection: StoredProjection) -> Tensor:
    """`[L, N, K]`: gate above up."""
    return projection.stored.codes.view(torch.float8_e4m3fn)


def _scales(projection: StoredProjection, rows: Tensor, prepared: StoredWeights, out: Tensor | None = None) -> Scales:
    from moesaic.kernels.coded_scales import Scales  # noqa: PLC0415

    form, inputs = projection.stored.form, _inputs(prepared)
    return Scales(
        rows,
        projection.stored.scales,
        row_groups=inputs.columns == BLOCK,
        weight_blocks=form.tile_columns == BLOCK,
        weight_rows=form.tile_rows == 1,
        out=out,
        recode=inputs.scale if out is not None else "",
    )
