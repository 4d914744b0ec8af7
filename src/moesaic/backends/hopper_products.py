"""Two grouped products of many rows on Hopper, with an order before and a sum behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moesaic.backends.device_weights import DeviceWeights, dense_rows
from moesaic.backends.triton_streamed import contiguous_weights
from moesaic.batches import GroupedBatch, Routing
from moesaic.problem import Problem

if TYPE_CHECKING:
    from moesaic.kernels.row_order import RowOrder

ALIGNMENT = 32
"""Rows of one expert begin at multiples of it."""

GROUP = 8
"""Tiles of an expert computed side by side, so that they share its weights in L2."""

MANY_ROWS, GATHERED_UP_TO = 512, 1300
"""Mean rows of an expert, and intermediate size, up to either of which gathering a row for each tile of columns costs
no more than copying it once."""


def product_tokens(hidden_states: Tensor, routing: Routing, prepared: DeviceWeights, problem: Problem) -> Tensor:
    """Order the pairs, both products, sum."""
    from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415
    from moesaic.kernels.hopper_form import ROWS, SPARE  # noqa: PLC0415
    from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415
    from moesaic.kernels.spread_rows import spread_rows  # noqa: PLC0415

    x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
    order = order_rows(ids, problem.num_experts, tile_rows=ROWS, spare=SPARE, alignment=ALIGNMENT, group=GROUP)
    num_rows = order.pairs.shape[0]
    results = x.new_empty(num_rows, problem.hidden_size)
    if _gathers(problem, ids.numel()):
        _multiply(x, order, prepared, problem, results, gather=ids.shape[1])
    else:
        rows = x.new_empty(num_rows, problem.hidden_size)
        spread_rows(x, order.places, weights if problem.weight_on_input else None, ids.shape[1], rows)
        _multiply(rows, order, prepared, problem, results)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    summed = None if problem.weight_on_input else weights
    combine_rows(results, ids, summed, order.places, problem.num_experts, output)
    return output


def product_rows(batch: GroupedBatch, prepared: DeviceWeights, problem: Problem) -> Tensor:
    """Rows that lie in expert order already, at multiples of 32, in place."""
    from moesaic.kernels.hopper_form import ROWS, SPARE  # noqa: PLC0415
    from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

    rows = dense_rows(batch.rows)
    counts, offsets = batch.counts.contiguous(), batch.offsets.contiguous()
    order = map_tiles(counts, offsets, rows.shape[0], tile_rows=ROWS, spare=SPARE, group=GROUP)
    output = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _multiply(rows, order, prepared, problem, output)
    return output


def _multiply(
    rows: Tensor, order: RowOrder, prepared: DeviceWeights, problem: Problem, results: Tensor, *, gather: int = 0
) -> None:
    """Both products. The second begins while the first ends, so it may not write what the first reads."""
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
    hopper_product(inner, prepared.down, prepared.biases[1], order, results, counter=2, after=stored)


def _gathers(problem: Problem, num_rows: int) -> bool:
    """A row that is scaled, or that ends inside a block, has to be copied."""
    from moesaic.kernels.hopper_form import DEPTH  # noqa: PLC0415

    if problem.weight_on_input or problem.hidden_size % DEPTH:
        return False
    return num_rows < MANY_ROWS * problem.num_experts or problem.intermediate_size <= GATHERED_UP_TO


def product_bytes(problem: Problem, num_pairs: int, product_rows: int) -> int:
    """What one call allocates beyond `streamed_bytes`: rows copied in expert order, and the ends of experts padded."""
    if not problem.layout.has_routing:
        return 0
    # Each expert's padding at most; where products begin at so many rows an expert, not more than a share of all rows.
    least = max(1, product_rows)
    padding = (ALIGNMENT - 1) * min(problem.num_experts * least, num_pairs) // least
    size = problem.dtype.itemsize
    copies = 0 if _gathers(problem, num_pairs) else (num_pairs + padding) * problem.hidden_size * size
    return copies + padding * ((problem.intermediate_size + problem.hidden_size) * size + 4)
