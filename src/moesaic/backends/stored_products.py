"""Both products with weights as stored, for every layout: order, round, multiply, round, multiply, sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from moesaic.backends.device_weights import dense_rows
from moesaic.backends.stored_tilings import stored_tiling
from moesaic.backends.stored_weights import StoredWeights
from moesaic.backends.triton_streamed import contiguous_weights
from moesaic.batches import BatchedBatch, GroupedBatch, Routing
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.quant import Plain

if TYPE_CHECKING:
    from moesaic.kernels.rounded_form import RoundedForm
    from moesaic.kernels.row_order import RowOrder
    from moesaic.kernels.stored_experts import StoredTiling


def tokens(hidden_states: Tensor, routing: Routing, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Tokens `[T, H]`, summed over their slots."""
    from moesaic.kernels.combine_rows import combine_rows  # noqa: PLC0415
    from moesaic.kernels.order_rows import order_rows  # noqa: PLC0415

    x, ids, weights = dense_rows(hidden_states), routing.topk_ids.contiguous(), contiguous_weights(routing)
    if ids.numel() == 0:
        return torch.zeros_like(hidden_states, memory_format=torch.contiguous_format)
    tiling = _tiling(prepared, problem, x.device, ids.numel())
    order = order_rows(ids, problem.num_experts, tile_rows=tiling.rows)
    source = (ids.shape[1], weights if problem.weight_on_input else None)
    results = x.new_empty(ids.numel(), problem.hidden_size)
    _multiply(x, order, prepared, problem, results, tiling=tiling, source=source)
    output = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    combine_rows(results, ids, None if problem.weight_on_input else weights, None, problem.num_experts, output)
    return output


def in_place(batch: GroupedBatch | BatchedBatch, prepared: StoredWeights, problem: Problem) -> Tensor:
    """Rows that lie in expert order already."""
    from moesaic.kernels.tile_map import map_tiles  # noqa: PLC0415

    rows = dense_rows(batch.rows.reshape(-1, problem.hidden_size))
    tiling = _tiling(prepared, problem, rows.device, rows.shape[0])
    offsets = batch.offsets.contiguous() if isinstance(batch, GroupedBatch) else None
    order = map_tiles(batch.counts.contiguous(), offsets, rows.shape[0], tile_rows=tiling.rows)
    output = torch.empty_like(batch.rows, memory_format=torch.contiguous_format)
    results = output.view(-1, problem.hidden_size)
    _multiply(rows, order, prepared, problem, results, tiling=tiling, source=(0, None))
    return output


def _multiply(
    x: Tensor,
    order: RowOrder,
    prepared: StoredWeights,
    problem: Problem,
    results: Tensor,
    *,
    tiling: StoredTiling,
    source: tuple[int, Tensor | None],
) -> None:
    """Both products; rows that will be rounded stay in float32 until then."""
    from moesaic.kernels.stored_experts import stored_down, stored_up  # noqa: PLC0415

    gate_up, down = prepared.gate_up.stored, prepared.down.stored
    wide = x.dtype if prepared.inputs is None else torch.float32
    inner = x.new_empty(results.shape[0], problem.intermediate_size, dtype=wide)
    top_k, row_weights = source
    if prepared.inputs is not None:
        x, scales = _rounded(x, order, prepared.inputs, prepared, problem.dtype, source)
        source = (top_k if row_weights is None else 1, None)
    else:
        scales = None
    stored_up(
        x,
        order,
        gate_up,
        prepared.gate_up_bias,
        inner,
        tiling=tiling,
        activation=prepared.expression,
        source=source,
        x_scales=scales,
    )
    if prepared.inputs is not None:
        inner, scales = _rounded(inner, order, prepared.inputs, prepared, problem.dtype, (1 if top_k else 0, None))
    stored_down(
        inner,
        order,
        down,
        prepared.down_bias,
        results,
        tiling=tiling,
        pairs=top_k > 0,
        inner_scales=scales,
    )


def _rounded(
    rows: Tensor,
    order: RowOrder,
    form: RoundedForm,
    prepared: StoredWeights,
    dtype: torch.dtype,
    source: tuple[int, Tensor | None],
) -> tuple[Tensor, Tensor | None]:
    """Rows as their format holds them: codes and scales where the products take those, else numbers in `dtype`."""
    from moesaic.kernels.round_rows import code_rows, round_rows  # noqa: PLC0415

    top_k, row_weights = source
    if takes_codes(prepared, rows.device):
        return code_rows(rows, order, form, top_k=top_k, row_weights=row_weights)
    return round_rows(rows, order, form, dtype, top_k=top_k, row_weights=row_weights), None


def takes_codes(prepared: StoredWeights, device: torch.device) -> bool:
    """Whether the products take codes on both sides."""
    from moesaic.kernels.stored_experts import fast_codes  # noqa: PLC0415

    form, weights = prepared.inputs, prepared.gate_up.stored.form
    if form is None or not form.coded or form.code != weights.code or weights.inside:
        return False
    return form.code == "int8" or fast_codes(device)


def _tiling(prepared: StoredWeights, problem: Problem, device: torch.device, num_rows: int) -> StoredTiling:
    form, coded = prepared.gate_up.stored.form, takes_codes(prepared, device)
    return stored_tiling(problem, Machine.current(device), num_rows, form, coded=coded)


def stored_bytes(problem: Problem, num_rows: int) -> int:
    """The most that one call allocates."""
    routed = problem.layout.has_routing
    pairs = num_rows * problem.top_k if routed else num_rows
    size = problem.dtype.itemsize
    rounds = not isinstance(problem.scheme.inputs, Plain)
    results = pairs * problem.hidden_size * size if routed else 0
    inner = pairs * problem.intermediate_size * (4 + size if rounds else size)
    rounded = max(num_rows, pairs if problem.weight_on_input else 0) * problem.hidden_size * size if rounds else 0
    rounded += 4 * (rounded // 16 + pairs * (1 + problem.intermediate_size // 128)) if rounds else 0  # scales
    order = order_bytes(problem, pairs, pairs)
    return inner + results + rounded + 2 * num_rows * problem.hidden_size * size + order + 16384


def order_bytes(problem: Problem, pairs: int, rows: int) -> int:
    """Rows and places, ids and weights of pairs that are copied, tiles, and histograms."""
    tiles = pairs // 16 + problem.num_experts
    histograms = min(129, pairs // 256 + 2) * max(16, 2 * problem.num_experts)
    return 12 * pairs + 4 * rows + 24 * tiles + 4 * histograms
