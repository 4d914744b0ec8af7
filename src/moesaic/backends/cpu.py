"""Cpu: the fast path on a CPU.

Slots are sorted once. With few rows an expert all experts run in one call, at memory bandwidth (`cpu_products.py`);
with some rows and most experts touched, in one batched product; else expert by expert, in blocks that stay in the
cache. The activation is in float32 and in place; one pass sums the rows of each token in float32. Experts without
rows are not read. Prediction, measurements and the layouts that were tried: docs/performance/cpu.md.
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
from moesaic.backends.cpu_products import bag_product, has_fast_bags
from moesaic.backends.cpu_slots import SortedSlots, sort_slots, weighted_sum
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, TokenBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import DTYPES, Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights

BLOCK_ROWS = 512
"""Rows of one expert handled at once: at 2I = 1024 the float32 block is 2 MiB, about one core's L2 cache."""

MAX_BAG_ROWS = 4
"""Rows an expert, on average, up to which bags win: at 6 they tie with the batched product (AMX and Zen 4)."""

MAX_BATCHED_ROWS = 32
"""Rows of the fullest expert up to which one batched product wins: at 64 it ties with one product an expert."""


MAX_PADDING = 3
"""Padded rows over rows up to which the batched product is used: padding costs gathering, activation and memory."""


@final
@dataclass(frozen=True, eq=False)
class CpuWeights:
    """`gate_up [L, H, width]` and `down [L, I, H]`, transposed against canonical; biases in the layer's dtype."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    output_scale: Tensor | None
    activations: Sequence[Activation]
    fast_bags: bool


@final
@dataclass(frozen=True)
class Cpu(Backend[CpuWeights]):
    """Products chosen by the number of rows an expert has. Needs no alignment; computes no gradients."""

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
        return CpuWeights(
            gate_up=weights.gate_up.data.detach().mT.contiguous(),
            down=weights.down.data.detach().mT.contiguous(),
            gate_up_bias=None if weights.gate_up_bias is None else weights.gate_up_bias.detach(),
            down_bias=None if weights.down_bias is None else weights.down_bias.detach(),
            output_scale=None if weights.output_scale is None else weights.output_scale.detach(),
            activations=[problem.activation.select([e]) for e in range(problem.num_experts)],
            fast_bags=has_fast_bags() and problem.dtype != torch.float64,
        )

    @override
    def canonical(self, prepared: CpuWeights, problem: Problem) -> ExpertWeights:
        return ExpertWeights.plain(
            prepared.gate_up.mT,
            prepared.down.mT,
            gate_up_bias=prepared.gate_up_bias,
            down_bias=prepared.down_bias,
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
        # Rows in flight: a block, or all rows where experts run side by side (padded to the fullest expert).
        side_by_side = MAX_BATCHED_ROWS * problem.num_experts if problem.layout.has_routing else 0
        most = -(-slots // problem.num_experts) if isinstance(problem.layout, BatchedExperts) else slots
        flying = max(min(most, BLOCK_ROWS), min(side_by_side, slots * MAX_PADDING))
        # Inputs and both products, the activation in float32 (the generic formula holds up to six copies) and bags'
        # index and factor for every 16th output; every slot's result (in float32 too, for float16 and under a norm).
        columns = size * (2 * hidden + 2 * width + 2 * inner) + 4 * (width + 6 * inner + 3 * hidden)
        bags = (
            min(slots, MAX_BAG_ROWS * problem.num_experts) * 16 * (hidden * -(-width // 16) + inner * -(-hidden // 16))
        )
        results = slots * hidden * (2 * size + (4 if size == 2 else 0)) + num_rows * hidden * (size + 4)
        return flying * columns + (bags if problem.layout.has_routing else 0) + results + slots * 120 + 4096


def _tokens(batch: TokenBatch, prepared: CpuWeights, problem: Problem) -> Tensor:
    ids, weights = batch.routing.topk_ids, batch.routing.topk_weights
    plan = sort_slots(batch.routing, problem.num_experts)
    if not plan.experts:
        return torch.zeros_like(batch.hidden_states)
    tokens = plan.slots.div(ids.shape[1], rounding_mode="floor")
    scales = weights.flatten()[plan.slots].unsqueeze(-1) if problem.weight_on_input else None
    fullest, touched, num_rows = max(plan.counts), len(plan.experts), plan.slots.numel()
    even = fullest * problem.num_experts <= MAX_PADDING * num_rows
    if prepared.fast_bags and num_rows <= MAX_BAG_ROWS * touched:
        table = _in_bags(_gathered(batch.hidden_states, tokens, scales), plan, prepared, problem)
        places = torch.arange(num_rows)
    elif even and fullest <= MAX_BATCHED_ROWS and 4 * touched >= 3 * problem.num_experts:
        places = _padded_places(plan, fullest)
        padded = tokens[:1].repeat(problem.num_experts * fullest)  # padding repeats a live row, never undefined memory
        padded[places] = tokens
        if scales is not None:
            scales = scales.new_ones(padded.numel(), 1).index_copy(0, places, scales)
        table = _batched(_gathered(batch.hidden_states, padded, scales), fullest, prepared, problem)
    else:
        table = _one_by_one(batch.hidden_states, tokens, scales, plan, prepared, problem)
        places = torch.arange(num_rows)
    return weighted_sum(table, plan.slots, places, torch.ones_like(weights) if problem.weight_on_input else weights)


def _gathered(hidden_states: Tensor, tokens: Tensor, scales: Tensor | None) -> Tensor:
    rows = hidden_states.index_select(0, tokens)
    return rows if scales is None else (rows * scales).to(rows.dtype)


def _in_bags(rows: Tensor, plan: SortedSlots, prepared: CpuWeights, problem: Problem) -> Tensor:
    ids = torch.tensor(plan.experts, dtype=torch.int32).repeat_interleave(torch.tensor(plan.counts))
    first = _plus(bag_product(rows, prepared.gate_up, ids), prepared.gate_up_bias, ids)
    inner = activate(problem.activation, first, ids)
    return _normed(_plus(bag_product(inner, prepared.down, ids), prepared.down_bias, ids), prepared, problem)


def _padded_places(plan: SortedSlots, height: int) -> Tensor:
    """Where each sorted slot lies if every expert has `height` rows."""
    ids, counts = torch.tensor(plan.experts), torch.tensor(plan.counts)
    shift = ids * height - (counts.cumsum(0) - counts)
    return torch.arange(plan.slots.numel()) + shift.repeat_interleave(counts)


def _batched(rows: Tensor, height: int, prepared: CpuWeights, problem: Problem) -> Tensor:
    """Every expert's `height` rows at once."""
    experts, hidden = problem.num_experts, problem.hidden_size
    ids = torch.arange(experts).repeat_interleave(height)
    first = torch.bmm(rows.view(experts, height, hidden), prepared.gate_up).flatten(0, 1)
    inner = activate(problem.activation, _plus(first, prepared.gate_up_bias, ids), ids)
    second = torch.bmm(inner.view(experts, height, -1), prepared.down).flatten(0, 1)
    return _normed(_plus(second, prepared.down_bias, ids), prepared, problem)


def _one_by_one(
    hidden_states: Tensor,
    tokens: Tensor,
    scales: Tensor | None,
    plan: SortedSlots,
    prepared: CpuWeights,
    problem: Problem,
) -> Tensor:
    table = hidden_states.new_empty(tokens.numel(), problem.hidden_size)
    start = 0
    for expert, count in zip(plan.experts, plan.counts, strict=True):
        piece = slice(start, start + count)
        rows = _gathered(hidden_states, tokens[piece], None if scales is None else scales[piece])
        _fill(table[piece], rows, expert, prepared, problem)
        start += count
    return table


def _fill(output: Tensor, rows: Tensor, expert: int, prepared: CpuWeights, problem: Problem) -> None:
    """Write one expert's results into `output`, block by block."""
    for start in range(0, rows.shape[0], BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        first = torch.mm(rows[block], prepared.gate_up[expert])
        if prepared.gate_up_bias is not None:
            first += prepared.gate_up_bias[expert]
        inner = activate(prepared.activations[expert], first, None)
        if prepared.down_bias is None and problem.output_norm is None:
            torch.mm(inner, prepared.down[expert], out=output[block])
            continue
        second = torch.mm(inner, prepared.down[expert])
        if prepared.down_bias is not None:
            second += prepared.down_bias[expert]
        output[block] = _normed(second, prepared, problem)


def _plus(rows: Tensor, bias: Tensor | None, expert_ids: Tensor) -> Tensor:
    """`rows`, which are overwritten, plus each one's bias."""
    return rows if bias is None else rows.add_(bias.index_select(0, expert_ids))


def _normed(rows: Tensor, prepared: CpuWeights, problem: Problem) -> Tensor:
    if problem.output_norm is None or prepared.output_scale is None:
        return rows
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return problem.output_norm(wide, prepared.output_scale).to(rows.dtype)
