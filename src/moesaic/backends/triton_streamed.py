"""Both products in one launch, or two for a handful of pairs, for every layout: what the Triton backends share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moesaic.backends.device_weights import DeviceWeights, dense_rows
from moesaic.batches import BatchedBatch, GroupedBatch, Routing
from moesaic.problem import Problem

if TYPE_CHECKING:
    from moesaic.kernels.streamed_experts import Tiling
    from moesaic.kernels.vector_experts import Strip


def vector_tokens(
    hidden_states: Tensor, routing: Routing, prepared: DeviceWeights, problem: Problem, strips: tuple[Strip, Strip]
) -> Tensor:
    """Each pair by itself, for very few of them."""
    from moesaic.kernels.vector_experts import vector_experts  # noqa: PLC0415

    x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
    inner = x.new_empty(ids.numel(), problem.intermediate_size)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    vector_experts(
        x,
        ids,
        weights,
        prepared.gate_up,
        prepared.down,
        inner,
        output,
        strips=strips,
        activation=prepared.expression,
        biases=prepared.biases,
        weight_on_input=problem.weight_on_input,
    )
    return output


def streamed_tokens(
    hidden_states: Tensor, routing: Routing, prepared: DeviceWeights, problem: Problem, tiling: Tiling
) -> Tensor:
    """Order the pairs, compute both products, sum."""
    from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415
    from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415
    from moesaic.kernels.streamed_experts import streamed_experts  # noqa: PLC0415

    x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
    order = order_rows(ids, problem.num_experts, tile_rows=tiling.tile_rows)
    inner = x.new_empty(ids.numel(), problem.intermediate_size)
    results = x.new_empty(ids.numel(), problem.hidden_size)
    streamed_experts(
        x,
        order,
        prepared.gate_up,
        prepared.down,
        inner,
        results,
        tiling=tiling,
        activation=prepared.expression,
        biases=prepared.biases,
        top_k=ids.shape[1],
        row_weights=weights if problem.weight_on_input else None,
    )
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    combine_rows(results, ids, None if problem.weight_on_input else weights, None, problem.num_experts, output)
    return output


def streamed_rows(
    batch: GroupedBatch | BatchedBatch, prepared: DeviceWeights, problem: Problem, tiling: Tiling
) -> Tensor:
    """Rows that lie in expert order already, in place."""
    from moesaic.kernels.streamed_experts import streamed_experts  # noqa: PLC0415
    from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

    rows = dense_rows(batch.rows.reshape(-1, problem.hidden_size))
    offsets = batch.offsets.contiguous() if isinstance(batch, GroupedBatch) else None
    order = map_tiles(batch.counts.contiguous(), offsets, rows.shape[0], tile_rows=tiling.tile_rows)
    inner = rows.new_empty(rows.shape[0], problem.intermediate_size)
    output = torch.empty_like(batch.rows, memory_format=torch.contiguous_format)
    streamed_experts(
        rows,
        order,
        prepared.gate_up,
        prepared.down,
        inner,
        output.view(-1, problem.hidden_size),
        tiling=tiling,
        activation=prepared.expression,
        biases=prepared.biases,
    )
    return output


def contiguous_weights(routing: Routing) -> Tensor:
    """The router's weights in float32, `[T, K]`, dense."""
    weights = routing.topk_weights  # as a rule they are so already, and two calls that do nothing cost 2 us
    return weights if weights.dtype == torch.float32 and weights.is_contiguous() else weights.float().contiguous()


def streamed_bytes(problem: Problem, num_rows: int) -> int:
    """The most that one call of any of the above allocates."""
    routed = problem.layout.has_routing
    pairs = num_rows * problem.top_k if routed else num_rows
    size = problem.dtype.itemsize
    hidden, inner = problem.hidden_size, problem.intermediate_size
    tiles = pairs // 16 + problem.num_experts
    # Pairs, places, ids and weights; tiles and flags; a histogram for each 256 pairs, up to 128 of them, and their sum.
    histograms = min(129, pairs // 256 + 2) * max(16, 2 * problem.num_experts)
    order = 16 * pairs + 24 * tiles + 4 * histograms
    results = pairs * hidden * size if routed else 0
    # Rows once more where they have to be copied, and the output.
    return pairs * inner * size + results + 2 * num_rows * hidden * size + order + 8192
