"""One call by the form that was chosen for its number of rows: what the backends on canonical weights share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from moesaic.backends.chosen_weights import ChosenWeights
from moesaic.backends.device_weights import DeviceWeights
from moesaic.backends.hopper_products import product_rows, product_tokens
from moesaic.backends.launch_faults import launch_faults, raise_if_launching
from moesaic.backends.triton_streamed import streamed_rows, streamed_tokens, vector_tokens
from moesaic.backends.triton_tilings import Launch
from moesaic.batches import BatchedBatch, GroupedBatch, Routing
from moesaic.errors import BatchError
from moesaic.problem import Problem
from moesaic.tuning.choices import Product


def compute_tokens(hidden_states: Tensor, routing: Routing, prepared: ChosenWeights, problem: Problem) -> Tensor:
    """Tokens `[T, H]`, summed over their slots."""
    num_tokens, slots = routing.topk_ids.shape
    if num_tokens * slots == 0:
        return torch.zeros_like(hidden_states, memory_format=torch.contiguous_format)
    # With fewer slots than K it is chosen as for so many fewer tokens: pairs are what counts.
    num_rows = num_tokens if slots == problem.top_k else -(-num_tokens * slots // problem.top_k)
    inputs = (hidden_states, routing.topk_ids, routing.topk_weights)
    try:
        compute = partial(_tokens, hidden_states, routing, prepared, problem, num_rows)
        return prepared.replays.run(inputs, compute, lambda: prepared.weights.tensors)
    except launch_faults() as fault:
        raise_if_launching(fault, prepared.chooser(num_rows), problem, hidden_states.device)
        raise


def _tokens(
    hidden_states: Tensor, routing: Routing, prepared: ChosenWeights, problem: Problem, num_rows: int
) -> Tensor:
    launch = prepared.launch(num_rows)
    if isinstance(launch, Product):
        return product_tokens(hidden_states, routing, prepared.weights, problem, launch)
    if isinstance(launch, tuple):
        return vector_tokens(hidden_states, routing, prepared.weights, problem, launch)
    return streamed_tokens(hidden_states, routing, prepared.weights, problem, launch)


def compute_rows(batch: GroupedBatch | BatchedBatch, prepared: ChosenWeights, problem: Problem) -> Tensor:
    """Rows that lie in expert order already, in place."""
    num_rows = batch.rows.numel() // problem.hidden_size
    launch = prepared.launch(num_rows)
    try:
        return _rows(batch, prepared.weights, problem, launch)
    except launch_faults() as fault:
        raise_if_launching(fault, prepared.chooser(num_rows), problem, batch.rows.device)
        raise


def _rows(batch: GroupedBatch | BatchedBatch, weights: DeviceWeights, problem: Problem, launch: Launch) -> Tensor:
    if isinstance(launch, Product) and isinstance(batch, GroupedBatch):
        return product_rows(batch, weights, problem, launch)
    if isinstance(launch, Product | tuple):
        raise BatchError(f"rows of {batch.layout!r} cannot be computed by {launch!r}: bind with another choice")
    return streamed_rows(batch, weights, problem, launch)
