"""Products of rows in expert order on Hopper: order, rows brought there as the products take them, products, sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final

import torch
from torch import Tensor

from moesaic.backends.device_weights import dense_rows
from moesaic.backends.triton_streamed import contiguous_weights
from moesaic.batches import GroupedBatch, Routing
from moesaic.problem import Problem

if TYPE_CHECKING:
    from moesaic.kernels.row_order import RowOrder

Rows = TypeVar("Rows")


@final
@dataclass(frozen=True)
class OrderedProducts(Generic[Rows]):
    """`tile_rows` of one expert in a tile; its rows begin at multiples of `alignment`.

    `spread(x, places, row_weights, top_k, num_rows)`: rows [num_rows, H] as `multiply` takes them. Token t goes to row
    places[t * K + k], without places to row t. `row_weights` [T, K] multiplies before.
    `multiply(rows, order, results)`: both products, into [num_rows, H].
    """

    tile_rows: int
    alignment: int
    spread: Callable[[Tensor, Tensor | None, Tensor | None, int, int], Rows]
    multiply: Callable[[Rows, RowOrder, Tensor], None]

    def of_tokens(self, hidden_states: Tensor, routing: Routing, problem: Problem) -> Tensor:
        """Tokens `[T, H]`, summed over their slots."""
        from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415
        from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415

        x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
        group = tiles_side_by_side(problem, ids.numel())
        experts = problem.num_experts
        order = order_rows(ids, experts, tile_rows=self.tile_rows, alignment=self.alignment, group=group)
        num_rows = order.pairs.shape[0]
        rows = self.spread(x, order.places, weights if problem.weight_on_input else None, ids.shape[1], num_rows)
        results = x.new_empty(num_rows, problem.hidden_size)
        self.multiply(rows, order, results)
        output = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
        combine_rows(results, ids, None if problem.weight_on_input else weights, order.places, experts, output)
        return output

    def of_rows(self, batch: GroupedBatch, problem: Problem) -> Tensor:
        """Rows that lie in expert order already, at multiples of `alignment`, in place."""
        from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

        rows = dense_rows(batch.rows)
        counts, offsets = batch.counts.contiguous(), batch.offsets.contiguous()
        group = tiles_side_by_side(problem, rows.shape[0])
        order = map_tiles(counts, offsets, rows.shape[0], tile_rows=self.tile_rows, group=group)
        output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        self.multiply(self.spread(rows, None, None, 1, rows.shape[0]), order, output)
        return output


def tiles_side_by_side(problem: Problem, num_pairs: int) -> int:
    """Tiles of an expert that are computed together, so that they share its weights in L2; no more than it has."""
    return min(8, max(1, num_pairs // (problem.num_experts * 128)))
