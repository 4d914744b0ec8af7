"""A layer with random weights of realistic scale, and rows routed to it with the skew that routers show.

Dimensions: T tokens, K slots, L local experts, H hidden size, I intermediate size, R rows, C capacity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.errors import ProblemError
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

_STEP = 4099
"""How far apart in one stream of random numbers two experts start: prime, so that no two rows of weights agree."""


def random_weights(problem: Problem, device: torch.device, *, seed: int = 0) -> ExpertWeights:
    """Normal weights that keep the variance of a row through each projection; equal seeds give equal weights."""
    experts, width, hidden = problem.num_experts, problem.width, problem.hidden_size
    draw = torch.Generator(device).manual_seed(seed)
    biased, normed = problem.bias, problem.output_norm is not None
    weights = ExpertWeights.plain(
        _stacked(problem, (width, hidden), draw),
        _stacked(problem, (hidden, problem.intermediate_size), draw),
        gate_up_bias=_normal(problem, (experts, width), draw) * 0.1 if biased else None,
        down_bias=_normal(problem, (experts, hidden), draw) * 0.1 if biased else None,
        output_scale=1 + _normal(problem, (hidden,), draw) * 0.1 if normed else None,
    )
    return weights.quantize(problem.scheme.weights)


def random_batch(problem: Problem, num_tokens: int, device: torch.device, *, seed: int = 0) -> Batch:
    """`num_tokens` normal rows and their routing, in the problem's layout; without routing T * K rows by expert."""
    draw = torch.Generator(device).manual_seed(seed)
    routing = skewed_routing(problem, num_tokens, draw)
    if problem.layout.has_routing:
        rows = _normal(problem, (num_tokens, problem.hidden_size), draw)
        is_padded = isinstance(problem.layout, PaddedStandard)
        return PaddedStandardBatch(rows, routing) if is_padded else StandardBatch(rows, routing)
    counts = torch.bincount(routing.topk_ids.flatten(), minlength=problem.num_experts).to(torch.int32)
    if isinstance(problem.layout, BatchedExperts):
        shape = (problem.num_experts, int(counts.max()), problem.hidden_size)
        return BatchedBatch(_normal(problem, shape, draw), counts)
    alignment = problem.layout.alignment if isinstance(problem.layout, GroupedContiguous) else 1
    ends = ((counts + alignment - 1) // alignment * alignment).cumsum(0).to(torch.int32)
    offsets = torch.cat([ends.new_zeros(1), ends[:-1]])
    return GroupedBatch(_normal(problem, (int(ends[-1]), problem.hidden_size), draw), offsets, counts, alignment)


def skewed_routing(problem: Problem, num_tokens: int, draw: torch.Generator) -> Routing:
    """K different experts for every token, the expert of rank r drawn in proportion to `1 / r`."""
    experts, top_k = problem.num_experts, problem.top_k
    if top_k > experts:
        raise ProblemError(
            f"the problem routes each token to {top_k} of {experts} experts: lower --top-k, or raise --experts"
        )
    order = torch.randperm(experts, generator=draw, device=draw.device)
    popularity = -torch.log(1 + order.float())
    noise = torch.rand(num_tokens, experts, generator=draw, device=draw.device).clamp_min(1e-9)
    chosen = torch.topk(popularity - torch.log(-torch.log(noise)), top_k, dim=-1)
    return Routing(chosen.indices.to(torch.int32), torch.softmax(chosen.values, dim=-1))


def _stacked(problem: Problem, shape: tuple[int, int], draw: torch.Generator) -> Tensor:
    """`[L, *shape]` of standard deviation `1 / sqrt(columns)`; experts are windows of one stream, which is fast."""
    size = math.prod(shape)
    scale = shape[1] ** -0.5
    stream = _normal(problem, (size + _STEP * problem.num_experts,), draw) * scale
    stacked = torch.empty(problem.num_experts, *shape, dtype=problem.dtype, device=draw.device)
    for expert in range(problem.num_experts):
        stacked[expert] = stream[expert * _STEP : expert * _STEP + size].view(shape)
    return stacked


def _normal(problem: Problem, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=draw, device=draw.device, dtype=torch.float32).to(problem.dtype)
