"""Reference: the oracle. Loops in float32 (float64 for float64), every declared thing served, nothing clever.

Its `run` is one of the three places where meaning lives; all other backends are compared with it. It is not in
`BACKENDS`, so it never runs unless it is asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import ACTIVATIONS
from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, Target
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, TokenBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import DTYPES, Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class Reference(Backend[ExpertWeights]):
    """Float32 loops over experts; differentiable. Reads ids and counts on the host, so it cannot be captured."""

    name: ClassVar[str] = "reference"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"), Target("cuda")),
        features=(),
        requires=(),
        dtypes=DTYPES,
        schemes=(UNQUANTIZED,),
        layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
        activations=tuple(Accepts.everything(a) for a in ACTIVATIONS),
        any_activation=True,
        bias=True,
        output_norm=True,
        weight_on_input=True,
        inactive_slots=True,
        duplicate_ids=True,
        deterministic=True,
        graph_capture=False,
        differentiable=True,
        row_bytes=1,
        max_experts=2**31 - 1,
        max_top_k=2**31 - 1,
    )

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        return weights

    @override
    def canonical(self, prepared: ExpertWeights, problem: Problem) -> ExpertWeights:
        return prepared

    @override
    def tensors(self, prepared: ExpertWeights) -> tuple[Tensor, ...]:
        return prepared.tensors

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        match batch:
            case GroupedBatch():
                return _grouped(batch, prepared, problem)
            case BatchedBatch():
                return _batched(batch, prepared, problem)
            case _:
                return _tokens(batch, prepared, problem)

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        # Every row at every stage in the accumulation dtype, and one expert's weights if they are converted to it.
        wide = _accumulation(problem)
        pairs = num_rows * problem.top_k if problem.layout.has_routing else num_rows
        columns = 8 * problem.hidden_size + 3 * problem.width + 8 * problem.intermediate_size
        converted = 0 if problem.dtype == wide else problem.num_weights
        elements = converted + pairs * columns + 2 * num_rows * problem.hidden_size
        return wide.itemsize * elements + num_rows * problem.hidden_size * problem.dtype.itemsize + 4096


def _tokens(batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    ids, p = batch.routing.topk_ids, batch.routing.topk_weights
    output = torch.zeros_like(batch.hidden_states, dtype=_accumulation(problem))
    for expert in range(problem.num_experts):
        token, slot = torch.where(ids == expert)
        if token.numel() == 0:
            continue
        rows = batch.hidden_states[token].to(output.dtype)
        weight = p[token, slot].to(output.dtype).unsqueeze(-1)
        if problem.weight_on_input:
            contribution = _expert(rows * weight, expert, weights, problem)
        else:
            contribution = _expert(rows, expert, weights, problem) * weight
        output = output.index_add(0, token, contribution)
    return output.to(problem.dtype)


def _grouped(batch: GroupedBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    pieces, at = [], 0
    for expert, start, stop in grouped_segments(batch):
        gap = batch.rows.new_zeros(start - at, problem.hidden_size)
        live = _expert(batch.rows[start:stop].to(_accumulation(problem)), expert, weights, problem)
        pieces += [gap, live.to(problem.dtype)]
        at = stop
    return torch.cat([*pieces, batch.rows.new_zeros(batch.rows.shape[0] - at, problem.hidden_size)])


def _batched(batch: BatchedBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    capacity = batch.rows.shape[1]
    slabs: list[Tensor] = []
    for expert, count in enumerate(slab_counts(batch)):
        live = _expert(batch.rows[expert, :count].to(_accumulation(problem)), expert, weights, problem)
        slabs.append(torch.cat([live.to(problem.dtype), batch.rows.new_zeros(capacity - count, problem.hidden_size)]))
    return torch.stack(slabs)


def _expert(rows: Tensor, expert: int, weights: ExpertWeights, problem: Problem) -> Tensor:
    """`norm(down @ act(gate_up @ row + b1) + b2)` for rows of one expert, in the dtype of `rows`."""
    gate_up = weights.gate_up.expert(expert).dequantize(rows.dtype)
    down = weights.down.expert(expert).dequantize(rows.dtype)
    first = rows @ gate_up.T
    if weights.gate_up_bias is not None:
        first = first + weights.gate_up_bias[expert].to(rows.dtype)
    ids = torch.full(first.shape[:-1], expert, device=rows.device, dtype=torch.int32)
    second = problem.activation(first, ids) @ down.T
    if weights.down_bias is not None:
        second = second + weights.down_bias[expert].to(rows.dtype)
    if problem.output_norm is not None and weights.output_scale is not None:
        second = problem.output_norm(second, weights.output_scale)
    return second


def _accumulation(problem: Problem) -> torch.dtype:
    return torch.float64 if problem.dtype == torch.float64 else torch.float32
