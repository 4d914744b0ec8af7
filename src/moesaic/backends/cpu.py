"""Cpu: the fast path on a CPU.

Slots are sorted once; each expert with rows runs two oneDNN products on weights packed at `prepare`, with the
activation in float32 and in place between them; one pass sums the rows of each token in float32. Experts without
rows are not read. Prediction, measurements and the layouts that were tried: docs/performance/cpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import GELU, GeGLU, Identity, PowLU, ReGLU, ReLU, ReLU2, SiLU, SiTU, SwiGLU, SwiGLUStep
from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, Target
from moesaic.backends.cpu_blocks import BLOCK_ROWS, Blocks, blocks_between
from moesaic.backends.cpu_few import FEW_SLOTS, compute_few, run_few
from moesaic.backends.cpu_many import chunk_tokens, run_many
from moesaic.backends.cpu_weights import CpuWeights
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import DTYPES, Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights

ACTIVATIONS: tuple[Accepts, ...] = (
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
)
"""What the CPU backends compute: activations run as torch operations, so most constants are free."""


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
        any_scheme=False,
        layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
        activations=ACTIVATIONS,
        any_activation=False,
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
    def tensors(self, prepared: CpuWeights) -> tuple[Tensor, ...]:
        return prepared.tensors

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
                if batch.routing.topk_ids.numel() > FEW_SLOTS:
                    return run_many(batch.hidden_states, batch.routing, prepared, problem)
                compute = partial(compute_few, weights=prepared, problem=problem)
                return run_few(batch.hidden_states, batch.routing, problem, compute)

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
        # formula holds up to eight copies), and the norm's float32 copies.
        blocked = (flying + 8) * (
            size * (2 * hidden + 2 * width + 2 * inner) + max(4, size) * (width + 8 * inner + 5 * hidden)
        )
        # Every slot's result (in float32 too, for float16), the chunk's sum, and the output.
        results = slots * hidden * (2 * size + (4 if size == 2 else 0)) + tokens * hidden * (size + 4)
        return blocked + results + num_rows * hidden * size + (slots + num_rows) * 120 + 4096


def _fill(output: Tensor, rows: Tensor, expert: int, blocks: Blocks, prepared: CpuWeights, problem: Problem) -> None:
    """Write one expert's results into `output`, block by block."""
    for block in blocks_between(0, rows.shape[0]):
        blocks.rows[: block.stop - block.start].copy_(rows[block])
        blocks.compute(output[block], expert, prepared, problem)
