"""Many rows on Hopper: the weights read back into memory at each call, then the grouped products of plain weights.

Reading back costs 2.5 bytes of traffic a weight of 4 bits and 3 of 8, whatever the number of rows; the products gain
what the kernels that read codes lose to it at every tile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moesaic.backends.device_weights import dense_rows
from moesaic.backends.hopper_products import ALIGNMENT
from moesaic.backends.stored_products import order_bytes
from moesaic.backends.stored_weights import StoredProjection, StoredWeights
from moesaic.backends.triton_streamed import contiguous_weights
from moesaic.batches import Routing
from moesaic.problem import Problem
from moesaic.quant import Plain
from moesaic.tuning.products import can_gather

GROUP = 8
"""Tiles of an expert computed side by side, so that they share its weights in L2."""


def expanded_tokens(hidden_states: Tensor, routing: Routing, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Tokens `[T, H]`, summed over their slots."""
    from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415
    from moesaic.kernels.hopper_form import ROWS, SPARE  # noqa: PLC0415
    from moesaic.kernels.hopper_product import announcements, hopper_product  # noqa: PLC0415
    from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415
    from moesaic.kernels.round_rows import round_rows  # noqa: PLC0415
    from moesaic.kernels.spread_rows import spread_rows  # noqa: PLC0415

    x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
    order = order_rows(ids, problem.num_experts, tile_rows=ROWS, spare=SPARE, alignment=ALIGNMENT, group=GROUP)
    num_rows, top_k = order.pairs.shape[0], ids.shape[1]
    gather = top_k if can_gather(problem) else 0
    rounded = prepared.inputs
    if rounded is not None and gather:
        x = round_rows(x, order, rounded, x.dtype, top_k=top_k)
    if not gather:
        rows = x.new_empty(num_rows, problem.hidden_size)
        spread_rows(x, order.places, weights if problem.weight_on_input else None, top_k, rows)
        x = rows if rounded is None else round_rows(rows, order, rounded, rows.dtype)
    inner = x.new_empty(num_rows, problem.intermediate_size)
    gate_up, down = _expanded(prepared.gate_up, problem), _expanded(prepared.down, problem)
    hopper_product(
        x,
        gate_up,
        prepared.gate_up_bias,
        order,
        inner,
        counter=1,
        gather=gather,
        activation=prepared.expression,
        announce=rounded is None,
    )
    if rounded is None:
        stored = announcements(problem.intermediate_size, gated=problem.width != problem.intermediate_size)
    else:
        inner, stored = round_rows(inner, order, rounded, inner.dtype), 0
    results = x.new_empty(num_rows, problem.hidden_size)
    hopper_product(inner, down, prepared.down_bias, order, results, counter=2, after=stored)
    output = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    summed = None if problem.weight_on_input else weights
    combine_rows(results, ids, summed, order.places, problem.num_experts, output)
    return output


def expanded_bytes(problem: Problem, num_rows: int) -> int:
    """The most that one call allocates: all weights, and every row at every stage in expert order."""
    pairs = num_rows * problem.top_k
    rows = pairs + (ALIGNMENT - 1) * min(problem.num_experts, pairs)
    rounds = not isinstance(problem.scheme.inputs, Plain)
    copies = 0 if can_gather(problem) else 1
    hidden = rows * (1 + copies * (2 if rounds else 1)) + num_rows * (3 if rounds and not copies else 2)
    elements = problem.num_experts * problem.num_weights + hidden * problem.hidden_size
    elements += rows * problem.intermediate_size * (2 if rounds else 1)
    return problem.dtype.itemsize * elements + order_bytes(problem, pairs, rows) + 16384


def _expanded(projection: StoredProjection, problem: Problem) -> Tensor:
    from moesaic.kernels.expand_weights import expand_weights  # noqa: PLC0415

    _, height, columns = projection.origin.shape
    return expand_weights(projection.stored, height // projection.origin.parts, columns, problem.dtype)
