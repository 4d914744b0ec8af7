"""Cpu: the fast path on a CPU.

Slots are sorted once; each expert with rows runs two oneDNN products on weights packed at `prepare`, with the
activation in float32 and in place between them; one pass sums the rows of each token in float32. Experts without
rows are not read. Prediction, measurements and the layouts that were tried: docs/performance/cpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import GELU, GeGLU, Identity, PowLU, ReGLU, ReLU, ReLU2, SiLU, SiTU, SwiGLU, SwiGLUStep
from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, Target
from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_blocks import BLOCK_ROWS, Blocks, blocks_between
from moesaic.backends.cpu_slots import FEW_SLOTS, SortedSlots, sort_slots, weighted_sum
from moesaic.backends.cpu_weights import CpuWeights
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, Routing, TokenBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import DTYPES, Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights

TABLE_BYTES = 24 << 20
"""Tokens come in chunks whose slots' results take so much: glibc maps anew, and faults in, what is over 32 MiB."""

CHUNK_ROWS = 256
"""Rows an expert, on average, that a chunk has at least: fewer would read the weights too often."""


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
        return CpuWeights.of(weights, problem)

    @override
    def canonical(self, prepared: CpuWeights, problem: Problem) -> ExpertWeights:
        return prepared.canonical()

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: CpuWeights, problem: Problem) -> Tensor:
        match batch:
            case GroupedBatch():
                output = torch.zeros_like(batch.rows, memory_format=torch.contiguous_format)
                segments = list(grouped_segments(batch))
                blocks = Blocks.of(problem, max((stop - start for _, start, stop in segments), default=0))
                for expert, start, stop in segments:
                    _fill(output[start:stop], batch.rows[start:stop], expert, blocks, prepared, problem)
                return output
            case BatchedBatch():
                output = torch.zeros_like(batch.rows, memory_format=torch.contiguous_format)
                counts = slab_counts(batch)
                blocks = Blocks.of(problem, max(counts))
                for expert, count in enumerate(counts):
                    _fill(output[expert, :count], batch.rows[expert, :count], expert, blocks, prepared, problem)
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
        routed = problem.layout.has_routing
        tokens = min(num_rows, chunk_tokens(problem)) if routed else 0
        slots = tokens * problem.top_k
        slab = -(-num_rows // problem.num_experts) if isinstance(problem.layout, BatchedExperts) else num_rows
        flying = min(slots, max(FEW_SLOTS, BLOCK_ROWS)) if routed else min(slab, BLOCK_ROWS)
        # Inputs and both products of a block (twice where they are joined), its activation in float32 (the generic
        # formula holds up to six copies), and the norm's float32 copies.
        blocked = (flying + 8) * (size * (2 * hidden + 2 * width + 2 * inner) + 4 * (width + 6 * inner + 3 * hidden))
        # Every slot's result (in float32 too, for float16), the chunk's sum, and the output.
        results = slots * hidden * (2 * size + (4 if size == 2 else 0)) + tokens * hidden * (size + 4)
        return blocked + results + num_rows * hidden * size + (slots + num_rows) * 120 + 4096


def _tokens(batch: TokenBatch, prepared: CpuWeights, problem: Problem) -> Tensor:
    output = torch.empty_like(batch.hidden_states, memory_format=torch.contiguous_format)
    ids, weights = batch.routing.topk_ids, batch.routing.topk_weights
    step = chunk_tokens(problem)
    for start in range(0, ids.shape[0], step):
        chunk = slice(start, start + step)
        output[chunk] = _chunk(batch.hidden_states[chunk], Routing(ids[chunk], weights[chunk]), prepared, problem)
    return output


def chunk_tokens(problem: Problem) -> int:
    """Tokens in a chunk."""
    fitting = TABLE_BYTES // (problem.top_k * problem.hidden_size * problem.dtype.itemsize)
    return max(fitting, CHUNK_ROWS * problem.num_experts // problem.top_k, 1)


def _chunk(hidden_states: Tensor, routing: Routing, prepared: CpuWeights, problem: Problem) -> Tensor:
    weights = routing.topk_weights
    plan = sort_slots(routing, problem.num_experts)
    if not plan.experts:
        return torch.zeros_like(hidden_states)
    tokens = plan.slots.div(weights.shape[1], rounding_mode="floor")
    scales = weights.flatten()[plan.slots].unsqueeze(-1) if problem.weight_on_input else None
    run = _side_by_side if weights.numel() <= FEW_SLOTS else _one_by_one
    table = run(hidden_states, tokens, scales, plan, prepared, problem)
    return weighted_sum(table, plan.slots, torch.ones_like(weights) if problem.weight_on_input else weights)


def _side_by_side(
    hidden_states: Tensor,
    tokens: Tensor,
    scales: Tensor | None,
    plan: SortedSlots,
    prepared: CpuWeights,
    problem: Problem,
) -> Tensor:
    """All experts' rows in one tensor, so that the activation is a few operations and not a few per expert."""
    rows = hidden_states.index_select(0, tokens)
    if scales is not None:
        rows = (rows * scales).to(rows.dtype)
    pieces = zip(plan.experts, rows.split(plan.counts), strict=True)
    first = torch.cat([prepared.gate_up[expert](piece) for expert, piece in pieces])
    per_expert = bool(problem.activation.per_expert())
    ids = torch.tensor(plan.experts).repeat_interleave(torch.tensor(plan.counts)) if per_expert else None
    inner = activate(problem.activation, first, ids, None)
    pieces = zip(plan.experts, inner.split(plan.counts), strict=True)
    return prepared.normed(torch.cat([prepared.down[expert](piece) for expert, piece in pieces]), problem)


def _one_by_one(
    hidden_states: Tensor,
    tokens: Tensor,
    scales: Tensor | None,
    plan: SortedSlots,
    prepared: CpuWeights,
    problem: Problem,
) -> Tensor:
    """Expert by expert, in blocks that stay in the cache."""
    table = hidden_states.new_empty(tokens.numel(), problem.hidden_size)
    blocks = Blocks.of(problem, max(plan.counts))
    start = 0
    for expert, count in zip(plan.experts, plan.counts, strict=True):
        for block in blocks_between(start, start + count):
            rows = blocks.rows[: block.stop - block.start]
            torch.index_select(hidden_states, 0, tokens[block], out=rows)
            if scales is not None:
                rows.copy_(rows * scales[block])
            blocks.compute(table[block], expert, prepared, problem)
        start += count
    return table


def _fill(output: Tensor, rows: Tensor, expert: int, blocks: Blocks, prepared: CpuWeights, problem: Problem) -> None:
    """Write one expert's results into `output`, block by block."""
    for block in blocks_between(0, rows.shape[0]):
        blocks.rows[: block.stop - block.start].copy_(rows[block])
        blocks.compute(output[block], expert, prepared, problem)
