"""Two grouped products of many rows on Hopper, with an order before and a sum behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moesaic.backends.device_weights import DeviceWeights, dense_rows
from moesaic.backends.triton_streamed import contiguous_weights
from moesaic.batches import GroupedBatch, Routing
from moesaic.problem import Problem
from moesaic.tuning.choices import Product
from moesaic.tuning.choosing import Padding
from moesaic.tuning.products import can_gather

if TYPE_CHECKING:
    from moesaic.kernels.row_order import RowOrder
    from moesaic.kernels.slot_sums import SlotSums

ALIGNMENT = 32
"""Rows of one expert begin at multiples of it."""

GATHERED = Product()
"""Rows gathered, where that can be."""


def product_tokens(
    hidden_states: Tensor, routing: Routing, prepared: DeviceWeights, problem: Problem, choice: Product = GATHERED
) -> Tensor:
    """Order the pairs, both products, sum."""
    from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415
    from moesaic.kernels.hopper_form import ROWS, SPARE  # noqa: PLC0415
    from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415
    from moesaic.kernels.slot_sums import SlotSums  # noqa: PLC0415
    from moesaic.kernels.spread_rows import spread_rows  # noqa: PLC0415

    x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
    order = order_rows(ids, problem.num_experts, tile_rows=ROWS, spare=SPARE, alignment=ALIGNMENT, group=choice.group)
    num_rows = order.pairs.shape[0]
    results = x.new_empty(num_rows, problem.hidden_size)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    summed = None if problem.weight_on_input else weights
    sums = SlotSums(output, order.places, summed, choice.blocks) if choice.blocks else None
    if choice.gather and can_gather(problem):
        _multiply(x, order, prepared, problem, results, sums, gather=ids.shape[1])
    else:
        rows = x.new_empty(num_rows, problem.hidden_size)
        spread_rows(x, order.places, weights if problem.weight_on_input else None, ids.shape[1], rows)
        _multiply(rows, order, prepared, problem, results, sums)
    if sums is None:
        combine_rows(results, ids, summed, order.places, problem.num_experts, output)
    return output


def product_rows(batch: GroupedBatch, prepared: DeviceWeights, problem: Problem, choice: Product = GATHERED) -> Tensor:
    """Rows that lie in expert order already, at multiples of 32, in place."""
    from moesaic.kernels.hopper_form import ROWS, SPARE  # noqa: PLC0415
    from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

    rows = dense_rows(batch.rows)
    counts, offsets = batch.counts.contiguous(), batch.offsets.contiguous()
    order = map_tiles(counts, offsets, rows.shape[0], tile_rows=ROWS, spare=SPARE, group=choice.group)
    output = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _multiply(rows, order, prepared, problem, output, None)
    return output


def _multiply(
    rows: Tensor,
    order: RowOrder,
    prepared: DeviceWeights,
    problem: Problem,
    results: Tensor,
    sums: SlotSums | None,
    *,
    gather: int = 0,
) -> None:
    """Both products. The second begins while the first ends, so it may write nothing that the first reads; it also
    sums what it makes.
    """
    from moesaic.kernels.hopper_product import announcements, hopper_product  # noqa: PLC0415

    inner = rows.new_empty(results.shape[0], problem.intermediate_size)
    hopper_product(
        rows,
        prepared.gate_up,
        prepared.biases[0],
        order,
        inner,
        counter=1,
        gather=gather,
        activation=prepared.expression,
        announce=True,
    )
    stored = announcements(problem.intermediate_size, gated=problem.width != problem.intermediate_size)
    hopper_product(inner, prepared.down, prepared.biases[1], order, results, counter=2, after=stored, sums=sums)


def product_bytes(problem: Problem, num_pairs: int, padding: Padding) -> int:
    """What one call allocates beyond `streamed_bytes`: rows copied in expert order, and the ends of experts padded."""
    if not problem.layout.has_routing:
        return 0
    # Each expert's padding at most; where products begin at so many rows an expert, not more than a share of all rows.
    least = padding.mean_rows
    padded = (ALIGNMENT - 1) * min(problem.num_experts * least, num_pairs) // least
    size = problem.dtype.itemsize
    copies = (num_pairs + padded) * problem.hidden_size * size if padding.copied else 0
    return copies + padded * ((problem.intermediate_size + problem.hidden_size) * size + 4)
