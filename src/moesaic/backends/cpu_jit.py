"""CpuJit: `Cpu` with a compiled kernel where few rows meet each expert and reading the weights is all that counts.

oneDNN reads cold packed weights at half of the memory's bandwidth and starts one parallel region for each expert. The
kernel (`kernels/packed_product.py`) reads the same memory at full bandwidth, all experts in one region, two regions a
layer. Everything else is Cpu's. Prediction and measurements: docs/performance/cpu.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities, Requires, Target
from moesaic.backends.cpu import ACTIVATIONS, Cpu
from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_few import expert_ids, run_few
from moesaic.backends.cpu_packed import PackedProjection
from moesaic.backends.cpu_weights import CpuWeights
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights

JIT_SLOTS = 2048
"""Slots up to which the kernels run; their float32 results grow with the slots. At 256 tokens of the measured layer (64
rows an expert) two AMX cores take 11.9 ms and `Cpu` 13.4, sixteen 6.0 and 9.7: `cpu_layer_amx_*_cores.json`."""


@final
@dataclass(frozen=True, eq=False)
class CpuJitWeights:
    """Cpu's weights, and where both projections of them lie."""

    weights: CpuWeights
    gate_up: PackedProjection
    down: PackedProjection
    process: int
    """The one that prepared: Numba ends a forked child that uses its threads, so a child runs as `Cpu` does."""


@final
@dataclass(frozen=True)
class CpuJit(Backend[CpuJitWeights]):
    """A kernel that Numba compiles when weights are bound (2 s in each process), `Cpu` for many slots."""

    name: ClassVar[str] = "cpu_jit"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"),),
        features=("avx512_bf16",),
        requires=(Requires("numba", (0, 62)),),
        dtypes=(torch.bfloat16,),
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
    def prepare(self, weights: ExpertWeights, problem: Problem) -> CpuJitWeights:
        packed = CpuWeights.of(weights, problem)
        prepared = CpuJitWeights(
            weights=packed,
            gate_up=PackedProjection.of(packed.gate_up, packed.gate_up_bias, weights.gate_up.data[0].detach()),
            down=PackedProjection.of(packed.down, packed.down_bias, weights.down.data[0].detach()),
            process=os.getpid(),
        )
        prepared.gate_up(
            [], [], torch.empty(0, prepared.gate_up.depth, dtype=torch.bfloat16, device="cpu")
        )  # compiles the kernel
        return prepared

    @override
    def canonical(self, prepared: CpuJitWeights, problem: Problem) -> ExpertWeights:
        return prepared.weights.canonical()

    @override
    def tensors(self, prepared: CpuJitWeights) -> tuple[Tensor, ...]:
        return (
            *prepared.weights.tensors,
            prepared.gate_up.biases,
            prepared.down.biases,
            prepared.gate_up.addresses,
            prepared.down.addresses,
        )

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: CpuJitWeights, problem: Problem) -> Tensor:
        if prepared.process != os.getpid():
            return Cpu().run(batch, prepared.weights, problem)
        compute = partial(_compute, prepared=prepared, problem=problem)
        match batch:
            case GroupedBatch():
                segments = list(grouped_segments(batch))
            case BatchedBatch():
                capacity = batch.rows.shape[1]
                segments = [(e, e * capacity, e * capacity + n) for e, n in enumerate(slab_counts(batch)) if n]
            case _:
                if batch.routing.topk_ids.numel() <= JIT_SLOTS:
                    return run_few(batch.hidden_states, batch.routing, problem, compute)
                return Cpu().run(batch, prepared.weights, problem)
        counts = [stop - start for _, start, stop in segments]
        if not 0 < sum(counts) <= JIT_SLOTS:
            return Cpu().run(batch, prepared.weights, problem)
        output = torch.zeros_like(batch.rows, memory_format=torch.contiguous_format)
        source, target = batch.rows.reshape(-1, problem.hidden_size), output.view(-1, problem.hidden_size)
        places = torch.cat([torch.arange(start, stop, device="cpu") for _, start, stop in segments])
        target[places] = compute([e for e, _, _ in segments], counts, source[places]).to(problem.dtype)
        return output

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        slots = num_rows * (problem.top_k if problem.layout.has_routing else 1)
        few = min(slots, JIT_SLOTS)
        hidden, width, inner = problem.hidden_size, problem.width, problem.intermediate_size
        # Rows twice and the inner rows, padded by up to 63 columns; both products in float32, the generic formula's
        # eight copies, the norm's; indices; the output.
        columns = 4 * hidden + 2 * (inner + 128) + 4 * (4 * hidden + width + 8 * inner + 128) + 120
        needed = few * columns + num_rows * hidden * 2 + 4096
        return needed if slots <= JIT_SLOTS else max(needed, Cpu().workspace(problem, num_rows))


def _compute(
    experts: list[int], counts: list[int], rows: Tensor, *, prepared: CpuJitWeights, problem: Problem
) -> Tensor:
    """The unweighted result of every row, in float32; inputs of both products are rounded to bfloat16."""
    first = prepared.gate_up(experts, counts, _padded(rows, prepared.gate_up.depth))
    inner = _rows_of(rows.shape[0], problem.intermediate_size, prepared.down.depth)
    ids = expert_ids(experts, counts) if prepared.weights.per_expert else None
    activate(problem.activation, first, ids, wide=None, out=inner[:, : problem.intermediate_size])
    second = prepared.down(experts, counts, inner)
    return prepared.weights.normed(second, problem)


def _padded(rows: Tensor, depth: int) -> Tensor:
    if rows.shape[1] == depth and rows.stride(1) == 1:
        return rows
    copy = _rows_of(rows.shape[0], rows.shape[1], depth)
    copy[:, : rows.shape[1]] = rows
    return copy


def _rows_of(num_rows: int, columns: int, depth: int) -> Tensor:
    """Rows of `depth` bfloat16 values, the first `columns` of them still to be written, the others zero."""
    fresh = torch.empty(num_rows, depth, dtype=torch.bfloat16, device="cpu")
    fresh[:, columns:] = 0
    return fresh
