"""Cpu: the fast path on a CPU.

Slots are sorted once; each expert with rows runs two oneDNN products on weights packed at `prepare`, with the
activation in float32 on a block that stays in the cache; one pass sums the rows of each token in float32.
Experts without rows are never touched. Prediction and outcome: docs/performance/cpu.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import (
    GELU,
    Activation,
    GeGLU,
    Identity,
    PowLU,
    ReGLU,
    ReLU,
    ReLU2,
    SiLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, Target
from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_projection import Projection
from moesaic.backends.cpu_slots import FEW_SLOTS, SortedSlots, sort_slots, weighted_sum
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, TokenBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import DTYPES, Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights

BLOCK_ROWS = 512
"""Rows of one expert handled at once: at 2I = 1024 the float32 block is 2 MiB, about one core's L2 cache."""


@final
@dataclass(frozen=True, eq=False)
class CpuWeights:
    """Both projections of every expert, and the activation with each expert's own constants."""

    gate_up: Sequence[Projection]
    down: Sequence[Projection]
    activations: Sequence[Activation]
    canonical_biases: tuple[Tensor | None, Tensor | None]
    output_scale: Tensor | None


@final
@dataclass(frozen=True)
class Cpu(Backend[CpuWeights]):
    """Packed oneDNN products, expert by expert. Needs no alignment; computes no gradients."""

    name: ClassVar[str] = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"),),
        features=(),
        requires=(),
        dtypes=DTYPES,
        schemes=(UNQUANTIZED,),
        layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
        activations=(
            Accepts(SwiGLU, per_expert=("alpha", "beta", "limit")),
            Accepts(SwiGLUStep, per_expert=("limit",)),
            Accepts(SiTU, per_expert=("gate_scale", "linear_scale", "limit")),
            Accepts(GeGLU, scalar=("approximate",)),
            Accepts(ReGLU),
            Accepts(PowLU, per_expert=("exponent", "limit")),
            Accepts(ReLU2, per_expert=("limit",)),
            Accepts(ReLU),
            Accepts(GELU, scalar=("approximate",)),
            Accepts(SiLU),
            Accepts(Identity),
        ),
        bias=True,
        output_norm=True,
        weight_on_input=True,
        inactive_slots=True,
        duplicate_ids=True,
        deterministic=True,
        graph_capture=False,
        differentiable=False,
        row_bytes=1,
        max_experts=2**31 - 1,
        max_top_k=2**31 - 1,
    )

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> CpuWeights:
        experts = range(problem.num_experts)
        first, second = weights.gate_up_bias, weights.down_bias
        return CpuWeights(
            gate_up=[Projection.of(weights.gate_up.data[e], None if first is None else first[e]) for e in experts],
            down=[Projection.of(weights.down.data[e], None if second is None else second[e]) for e in experts],
            activations=[problem.activation.select([e]) for e in experts],
            canonical_biases=(first, second),
            output_scale=None if weights.output_scale is None else weights.output_scale.detach(),
        )

    @override
    def canonical(self, prepared: CpuWeights, problem: Problem) -> ExpertWeights:
        return ExpertWeights.plain(
            torch.stack([projection.dense() for projection in prepared.gate_up]),
            torch.stack([projection.dense() for projection in prepared.down]),
            gate_up_bias=prepared.canonical_biases[0],
            down_bias=prepared.canonical_biases[1],
            output_scale=prepared.output_scale,
        )

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: CpuWeights, problem: Problem) -> Tensor:
        match batch:
            case GroupedBatch():
                output = torch.zeros_like(batch.rows)
                for expert, start, stop in grouped_segments(batch):
                    _fill(output[start:stop], batch.rows[start:stop], expert, prepared, problem)
                return output
            case BatchedBatch():
                output = torch.zeros_like(batch.rows)
                for expert, count in enumerate(slab_counts(batch)):
                    _fill(output[expert, :count], batch.rows[expert, :count], expert, prepared, problem)
                return output
            case _:
                return _tokens(batch, prepared, problem)

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        hidden, width, inner, size = (
            problem.hidden_size,
            problem.width,
            problem.intermediate_size,
            problem.dtype.itemsize,
        )
        slots = num_rows * problem.top_k if problem.layout.has_routing else num_rows
        most = -(-slots // problem.num_experts) if isinstance(problem.layout, BatchedExperts) else slots
        block = min(most, max(BLOCK_ROWS, FEW_SLOTS))
        # Inputs and both products of a block, its activation in float32 (the generic formula holds up to six copies),
        # every slot's result (twice while it is joined, in float32 for float16 and under a norm), the sorted slots.
        blocked = block * (size * (2 * hidden + 2 * width + 2 * inner) + 4 * (width + 6 * inner + 3 * hidden))
        results = slots * hidden * (2 * size + (4 if size == 2 else 0)) + num_rows * hidden * (size + 4)
        return blocked + results + slots * 120 + 4096


def _tokens(batch: TokenBatch, prepared: CpuWeights, problem: Problem) -> Tensor:
    ids, weights = batch.routing.topk_ids, batch.routing.topk_weights
    plan = sort_slots(batch.routing, problem.num_experts)
    if not plan.experts:
        return torch.zeros_like(batch.hidden_states)
    tokens = plan.slots.div(ids.shape[1], rounding_mode="floor")
    scales = weights.flatten()[plan.slots].unsqueeze(-1) if problem.weight_on_input else None
    if ids.numel() <= FEW_SLOTS:
        rows = _gathered(batch.hidden_states, tokens, scales)
        table = _few(rows, plan, prepared, problem)
    else:
        table = batch.hidden_states.new_empty(tokens.numel(), problem.hidden_size)
        start = 0
        for expert, count in zip(plan.experts, plan.counts, strict=True):
            piece = slice(start, start + count)
            rows = _gathered(batch.hidden_states, tokens[piece], None if scales is None else scales[piece])
            _fill(table[piece], rows, expert, prepared, problem)
            start += count
    return weighted_sum(
        table, plan.slots, batch.routing, torch.ones_like(weights) if problem.weight_on_input else weights
    )


def _gathered(hidden_states: Tensor, tokens: Tensor, scales: Tensor | None) -> Tensor:
    rows = hidden_states.index_select(0, tokens)
    return rows if scales is None else (rows * scales).to(rows.dtype)


def _few(rows: Tensor, plan: SortedSlots, prepared: CpuWeights, problem: Problem) -> Tensor:
    """All experts' rows side by side, so that the activation is a few operations and not a few per expert."""
    pieces = zip(plan.experts, rows.split(plan.counts), strict=True)
    first = torch.cat([prepared.gate_up[expert](piece) for expert, piece in pieces])
    ids = (
        torch.tensor(plan.experts).repeat_interleave(torch.tensor(plan.counts))
        if problem.activation.per_expert()
        else None
    )
    inner = activate(problem.activation, first, ids)
    pieces = zip(plan.experts, inner.split(plan.counts), strict=True)
    return _normed(torch.cat([prepared.down[expert](piece) for expert, piece in pieces]), prepared, problem)


def _fill(output: Tensor, rows: Tensor, expert: int, prepared: CpuWeights, problem: Problem) -> None:
    """Write one expert's results into `output`, block by block."""
    for start in range(0, rows.shape[0], BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        inner = activate(prepared.activations[expert], prepared.gate_up[expert](rows[block]), None)
        output[block] = _normed(prepared.down[expert](inner), prepared, problem)


def _normed(rows: Tensor, prepared: CpuWeights, problem: Problem) -> Tensor:
    if problem.output_norm is None or prepared.output_scale is None:
        return rows
    return problem.output_norm(rows if rows.dtype == torch.float64 else rows.float(), prepared.output_scale).to(
        rows.dtype
    )
