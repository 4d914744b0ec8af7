"""TorchGrouped: `torch.nn.functional.grouped_mm` over rows sorted by expert, on CPU and CUDA, differentiable.

Facts of grouped_mm that shape this file (torch 2.11 to 2.14): offsets are int32 ends of groups; every row stride
is a multiple of 16 bytes; rows past the last end come back uninitialised, in the backward pass too, and so does the
weight gradient of a group without rows; an end past the rows is accepted silently; there is no bias. So dead rows
are masked before and after the first product and before the sum, and ends are clamped to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional
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
from moesaic.backends.capabilities import Accepts, Capabilities, Reason, ReasonCode, Requires, Target
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, TokenBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.quant import UNQUANTIZED, Quantized
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class TorchGrouped(Backend[ExpertWeights]):
    """Two grouped products around the activation's own formula in float32. Portable and differentiable.

    On CUDA, in bfloat16, nothing is read on the host, so it can be captured in a graph; in others grouped_mm reads
    its offsets there (torch 2.11), and capture is declined. The canonical weights are used as they are.
    """

    name: ClassVar[str] = "torch_grouped"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"), Target("cuda", min_capability=80)),
        features=(),
        requires=(Requires("torch", (2, 11)),),
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
        schemes=(UNQUANTIZED,),
        any_scheme=False,
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
        any_activation=False,
        bias=True,
        output_norm=True,
        weight_on_input=True,
        inactive_slots=True,
        duplicate_ids=True,
        deterministic=True,
        graph_capture=True,
        differentiable=True,
        row_bytes=16,
        max_experts=1023,  # grouped_mm on CUDA refuses 1024 groups and more (GroupMM.cu)
        max_top_k=2**31 - 1,
    )

    @override
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        captured = problem.graph_capture and machine.device == "cuda"
        if captured and problem.dtype in {torch.float16, torch.float32}:  # an undeclared dtype has its own reason
            return (Reason(ReasonCode.GRAPH_CAPTURE, "torch.bfloat16 to be captured", str(problem.dtype)),)
        return ()

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        gate_up = Quantized(weights.gate_up.format, _aligned(weights.gate_up.data))
        down = Quantized(weights.down.format, _aligned(weights.down.data))
        return replace(weights, gate_up=gate_up, down=down)

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
        rows = num_rows * problem.top_k if problem.layout.has_routing else num_rows
        # On a CPU a group's product packs its weights, one expert at a time.
        packed = problem.num_weights * problem.dtype.itemsize
        size, hidden, width, inner = (
            problem.dtype.itemsize,
            problem.hidden_size,
            problem.width,
            problem.intermediate_size,
        )
        # Gathered, masked and first-product rows in the layer's dtype; the activation's float32 copies; then the second
        # product twice, and weighted in float32; ids, permutation and masks at 40 bytes a row.
        stored = rows * size * (4 * hidden + 2 * width + inner)
        wide = rows * 4 * (2 * width + 6 * inner + 3 * hidden)
        # grouped_mm's own tables on CUDA: 16 KiB and 35 bytes a group beyond the above, measured on an H200.
        own = 20480 + 64 * problem.num_experts
        return packed + stored + wide + rows * 40 + num_rows * hidden * (4 + size) + own + 4096


def _tokens(batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    ids, p = batch.routing.topk_ids, batch.routing.topk_weights
    (num_tokens, top_k), experts = ids.shape, problem.num_experts
    flat = torch.where((ids >= 0) & (ids < experts), ids, experts).flatten()
    sorted_ids, order = torch.sort(flat, stable=True)
    live = sorted_ids < experts
    rows = _live(live, batch.hidden_states[torch.div(order, top_k, rounding_mode="floor")])
    if problem.weight_on_input:
        rows = (rows * _live(live, p.flatten()[order].unsqueeze(-1))).to(problem.dtype)
    expert_ids = sorted_ids.clamp(max=experts - 1)
    ends = torch.searchsorted(sorted_ids, _expert_range(problem, ids), right=True, out_int32=True)
    result = _experts(rows, ends, expert_ids, live, weights, problem)
    slots = torch.empty_like(order)
    slots[order] = torch.arange(order.numel(), device=order.device)
    per_slot = result[slots].view(num_tokens, top_k, problem.hidden_size).float()
    if not problem.weight_on_input:
        per_slot = per_slot * _live((flat < experts).view(num_tokens, top_k), p).unsqueeze(-1)
    return per_slot.sum(dim=1).to(problem.dtype)


def _grouped(batch: GroupedBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    if batch.rows.device.type == "cpu":
        for _ in grouped_segments(batch):  # checks the offsets, which cost nothing to read here
            pass
    num_rows = batch.rows.shape[0]
    # A group begins where the one before it ended: a gap is computed as rows of the group behind it, which nobody
    # reads. An expert without rows ends where the one before it did, whatever its offset says.
    stops = torch.where(batch.counts > 0, batch.offsets + batch.counts, 0).clamp(max=num_rows)
    ends = stops.cummax(dim=0).values
    position = torch.arange(num_rows, device=ends.device, dtype=torch.int32)
    owner = torch.searchsorted(ends, position, right=True)
    owner = owner.clamp(max=problem.num_experts - 1)
    live = (position >= batch.offsets[owner]) & (position < (batch.offsets + batch.counts)[owner])
    return _experts(_defined(live, batch.rows), ends, owner, live, weights, problem)


def _batched(batch: BatchedBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    experts, capacity, hidden = batch.rows.shape
    if batch.rows.device.type == "cpu":
        slab_counts(batch)
    ends = torch.arange(1, experts + 1, device=batch.rows.device, dtype=torch.int32) * capacity
    owner = torch.arange(experts, device=batch.rows.device).repeat_interleave(capacity)
    live = (torch.arange(capacity, device=batch.rows.device) < batch.counts.unsqueeze(-1)).flatten()
    rows = _defined(live, batch.rows.reshape(experts * capacity, hidden))
    return _experts(rows, ends, owner, live, weights, problem).view(experts, capacity, hidden)


def _experts(
    rows: Tensor, ends: Tensor, expert_ids: Tensor, live: Tensor, weights: ExpertWeights, problem: Problem
) -> Tensor:
    """Both projections of sorted rows; dead rows come back as zeros."""
    # Each sum is masked after its bias, so that what comes back to a dead row reaches neither bias nor product.
    first = _live(live, _biased(_product(rows, weights.gate_up.data, ends), weights.gate_up_bias, expert_ids))
    inner = _activated(problem.activation, first, expert_ids)
    second = _live(live, _biased(_product(inner, weights.down.data, ends), weights.down_bias, expert_ids))
    if problem.output_norm is not None and weights.output_scale is not None:
        second = problem.output_norm(second.float(), weights.output_scale).to(second.dtype)
    return second


def _product(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    if rows.shape[0] == 0:
        return rows.new_empty(0, weights.shape[1])
    transposed = weights.mT
    if transposed.requires_grad and torch.is_grad_enabled():
        filled = (torch.diff(ends, prepend=ends.new_zeros(1)) > 0).view(-1, 1, 1)

        def keep_filled(gradient: Tensor) -> Tensor:
            return torch.where(filled, gradient, 0)

        transposed.register_hook(keep_filled)
    return functional.grouped_mm(_aligned(rows), transposed, offs=ends)


def _aligned(values: Tensor) -> Tensor:
    """`values`, copied if grouped_mm would refuse them: one dimension is dense, the others step by 16 bytes."""
    size, strides = values.element_size(), values.stride()
    for dense in (-1, -2) if values.ndim == 3 else (-1,):
        others = [s for i, s in enumerate(strides) if i != values.ndim + dense]
        if strides[dense] == 1 and not any(s * size % 16 for s in (*others, values.storage_offset())):
            return values
    return values.clone(memory_format=torch.contiguous_format)


def _biased(rows: Tensor, bias: Tensor | None, expert_ids: Tensor) -> Tensor:
    return rows if bias is None else rows + bias[expert_ids].to(rows.dtype)


def _activated(activation: Activation, rows: Tensor, expert_ids: Tensor) -> Tensor:
    return activation(rows, expert_ids).to(rows.dtype)


def _live(live: Tensor, values: Tensor) -> Tensor:
    """`values`, with exact zeros where not `live`: a product with zero would keep NaN, in the backward pass too."""
    return torch.where(live if live.ndim == values.ndim else live.unsqueeze(-1), values, 0)


def _defined(live: Tensor, rows: Tensor) -> Tensor:
    """`rows`, undefined ones zeroed if gradients are computed: the weights' gradient sums over every row of a group."""
    return _live(live, rows) if torch.is_grad_enabled() else rows


def _expert_range(problem: Problem, like: Tensor) -> Tensor:
    return torch.arange(problem.num_experts, device=like.device, dtype=like.dtype)
