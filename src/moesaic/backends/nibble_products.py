"""Many rows on Hopper, weights of 4 bits: rows copied in expert order, two grouped products of codes, a sum."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moesaic.backends.hopper_products import ALIGNMENT
from moesaic.backends.ordered_products import OrderedProducts
from moesaic.backends.stored_products import order_bytes
from moesaic.backends.stored_weights import StoredWeights
from moesaic.batches import GroupedBatch, Routing
from moesaic.problem import Problem
from moesaic.quant import INT4, MXFP4, NVFP4, PerGroup, Plain

if TYPE_CHECKING:
    from moesaic.kernels.row_order import RowOrder

GROUPS = (32, 64, 128)
"""Columns that may share a scale."""

STEP = 8
"""TMA copies rows of bfloat16 numbers that begin at multiples of 16 bytes."""


def multiplies_nibbles(problem: Problem) -> bool:
    """Whether the products take this scheme: codes of 4 bits whose scales are exact in bfloat16."""
    from moesaic.backends.format_forms import rounded_form  # noqa: PLC0415

    inputs = problem.scheme.inputs
    if problem.dtype != torch.bfloat16 or problem.hidden_size % STEP or problem.intermediate_size % STEP:
        return False
    if not isinstance(inputs, Plain) and rounded_form(inputs) is None:
        return False
    match problem.scheme.weights:
        case MXFP4() | NVFP4():
            return True
        case INT4(granularity=PerGroup(columns=columns), zero_point=False, scale=torch.bfloat16):
            return columns in GROUPS
        case _:
            return False


def nibble_tokens(
    hidden_states: Tensor, routing: Routing, prepared: StoredWeights, problem: Problem, *, tile_rows: int
) -> Tensor:
    """Tokens `[T, H]`, summed over their slots; `tile_rows`: 32 for few rows of an expert, else 128."""
    return _products(prepared, problem, tile_rows).of_tokens(hidden_states, routing, problem)


def nibble_rows(batch: GroupedBatch, prepared: StoredWeights, problem: Problem, *, tile_rows: int) -> Tensor:
    """Rows that lie in expert order already, at multiples of 32, in place."""
    return _products(prepared, problem, tile_rows).of_rows(batch, problem)


def _products(prepared: StoredWeights, problem: Problem, tile_rows: int) -> OrderedProducts[Tensor]:
    return OrderedProducts(tile_rows, ALIGNMENT, _spread, partial(_multiply, prepared=prepared, problem=problem))


def _spread(x: Tensor, places: Tensor | None, row_weights: Tensor | None, top_k: int, num_rows: int) -> Tensor:
    from moesaic.kernels.spread_rows import spread_rows  # noqa: PLC0415

    if places is None:
        return x
    rows = x.new_empty(num_rows, x.shape[1])
    spread_rows(x, places, row_weights, top_k, rows)
    return rows


def nibble_bytes(problem: Problem, num_rows: int) -> int:
    """The most that one call allocates."""
    pairs = num_rows * problem.top_k if problem.layout.has_routing else num_rows
    rows = pairs + (ALIGNMENT - 1) * min(problem.num_experts, pairs)
    stages = 1 if isinstance(problem.scheme.inputs, Plain) else 2
    elements = rows * (problem.hidden_size * (1 + stages) + problem.intermediate_size * stages)
    elements += 2 * num_rows * problem.hidden_size
    return problem.dtype.itemsize * elements + order_bytes(problem, pairs, rows) + 16384


def _multiply(rows: Tensor, order: RowOrder, results: Tensor, *, prepared: StoredWeights, problem: Problem) -> None:
    """Both products. The second begins while the first ends, unless the inner rows are rounded between them."""
    from moesaic.kernels.hopper_product import announcements  # noqa: PLC0415
    from moesaic.kernels.nibble_product import nibble_product  # noqa: PLC0415
    from moesaic.kernels.round_rows import round_rows  # noqa: PLC0415

    rounded, gated = prepared.inputs, problem.width != problem.intermediate_size
    if rounded is not None:
        rows = round_rows(rows, order, rounded, rows.dtype)
    inner = rows.new_empty(rows.shape[0], problem.intermediate_size)
    nibble_product(
        rows,
        prepared.gate_up.stored,
        prepared.gate_up_bias,
        order,
        inner,
        counter=1,
        activation=prepared.expression,
        announce=rounded is None,
    )
    stored = announcements(problem.intermediate_size, gated=gated)
    if rounded is not None:
        inner, stored = round_rows(inner, order, rounded, inner.dtype), 0
    nibble_product(inner, prepared.down.stored, prepared.down_bias, order, results, counter=2, after=stored)
