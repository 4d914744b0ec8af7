"""Few rows on Hopper, weights of 4 bits: rows split in two E4M3 numbers as they are spread, two products, a sum."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from moesaic.backends.nibble_products import multiplies_nibbles
from moesaic.backends.ordered_products import OrderedProducts
from moesaic.backends.stored_products import order_bytes
from moesaic.backends.stored_weights import StoredWeights
from moesaic.batches import GroupedBatch, Routing
from moesaic.problem import Problem
from moesaic.quant import INT4, MXFP4, PerGroup, Plain

if TYPE_CHECKING:
    from moesaic.kernels.row_order import RowOrder
    from moesaic.kernels.split_rows import SplitRows

ALIGNMENT = 8
"""Rows of one expert begin at multiples of it."""

LEAST_GROUP = 64
"""Columns of INT4 that share a scale: sums of so many are scaled."""


def multiplies_split(problem: Problem) -> bool:
    """Whether these products take the scheme: codes of 4 bits whose scales belong to 32 columns or more."""
    if not multiplies_nibbles(problem) or not isinstance(problem.scheme.inputs, Plain):
        return False
    match problem.scheme.weights:
        case MXFP4():
            return True
        case INT4(granularity=PerGroup(columns=columns)):
            return columns >= LEAST_GROUP
        case _:
            return False


def split_tokens(hidden_states: Tensor, routing: Routing, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Tokens `[T, H]`, summed over their slots."""
    return _products(prepared, problem).of_tokens(hidden_states, routing, problem)


def split_grouped(batch: GroupedBatch, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Rows that lie in expert order already, at multiples of 8, in place."""
    return _products(prepared, problem).of_rows(batch, problem)


def _products(prepared: StoredWeights, problem: Problem) -> OrderedProducts[SplitRows]:
    from moesaic.kernels.split_form import ROWS, numbers_beside  # noqa: PLC0415
    from moesaic.kernels.split_rows import split_rows  # noqa: PLC0415

    spread = partial(split_rows, numbers=numbers_beside(prepared.gate_up.stored.form.code))
    return OrderedProducts(ROWS, ALIGNMENT, spread, partial(_multiply, prepared=prepared, problem=problem))


def split_bytes(problem: Problem, num_rows: int) -> int:
    """The most that one call allocates."""
    pairs = num_rows * problem.top_k if problem.layout.has_routing else num_rows
    rows = pairs + (ALIGNMENT - 1) * min(problem.num_experts, pairs) + ALIGNMENT
    hidden, inner = (-(-size // 128) for size in (problem.hidden_size, problem.intermediate_size))
    split = rows * (hidden + inner) * (2 * 128 + 4 * 4)
    plain = problem.dtype.itemsize * problem.hidden_size * (rows + 2 * num_rows)
    return split + plain + order_bytes(problem, pairs, rows) + 16384


def _multiply(rows: SplitRows, order: RowOrder, results: Tensor, *, prepared: StoredWeights, problem: Problem) -> None:
    """Both products. The first splits what it stores, and the second begins while it ends."""
    from moesaic.kernels.hopper_product import announcements  # noqa: PLC0415
    from moesaic.kernels.split_form import numbers_beside  # noqa: PLC0415
    from moesaic.kernels.split_product import split_product  # noqa: PLC0415
    from moesaic.kernels.split_rows import SplitRows  # noqa: PLC0415

    hidden, width, down = problem.hidden_size, problem.intermediate_size, prepared.down
    inner = SplitRows.empty(results.shape[0], width, numbers_beside(down.stored.form.code), results.device)
    split_product(
        rows,
        prepared.gate_up.stored,
        prepared.gate_up_bias,
        order,
        inner,
        columns=width,
        counter=1,
        activation=prepared.expression,
        announce=True,
    )
    after = announcements(width, gated=problem.width != width)
    split_product(inner, down.stored, prepared.down_bias, order, results, columns=hidden, counter=2, after=after)
