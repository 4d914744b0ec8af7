"""The pairs of a routing in expert order: places[p] = start[e(p)] + (pairs of e before p), stable, without atomics.

A pair whose id is outside [0, E) gets no row. Nothing is read on the host; the grids are those of the worst routing.
"""

from __future__ import annotations

from torch import Tensor

from moesaic.kernels.order_few import order_few
from moesaic.kernels.order_many import order_many
from moesaic.kernels.row_order import RowOrder, most_rows, most_tiles

FEW = 4096
"""Pairs up to which one launch is faster: 2.9 us at 512, 6.0 at 4096, 8.5 at 8192 (docs/performance/hopper.md)."""

FEW_EXPERTS = 256
"""And experts: each is a program that counts all of them."""


def order_rows(
    topk_ids: Tensor, num_experts: int, *, tile_rows: int, spare: int = 0, alignment: int = 1, group: int = 1
) -> RowOrder:
    """The order of `topk_ids` [T, K] int32: each expert's rows begin at a multiple of `alignment`.

    `spare`: rows that an expert's last tile may take beyond `tile_rows`. `group`: about how many tiles of one expert
    form a group.
    """
    ids = topk_ids.contiguous()
    num_pairs = ids.numel()
    tiles = most_tiles(num_pairs, num_experts, tile_rows)
    order = RowOrder.empty(most_rows(num_pairs, num_experts, alignment), num_pairs, tiles, tile_rows, ids.device)
    fill = order_few if num_pairs <= FEW and num_experts <= FEW_EXPERTS else order_many
    fill(ids, order, num_experts, spare=spare, alignment=alignment, group=group)
    return order
