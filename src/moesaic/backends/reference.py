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
from moesaic.backends.capabilities import Accepts, Capabilities, Reason, ReasonCode, Target
from moesaic.backends.host_rows import grouped_segments, slab_counts
from moesaic.backends.strict import check
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, TokenBatch
from moesaic.checks import flag
from moesaic.errors import BackendError, GradientError
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.problem import DTYPES, Problem
from moesaic.quant import SCHEMES, Format, Plain
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class Reference(Backend[ExpertWeights]):
    """Float32 loops over experts; differentiable. Reads ids and counts on the host, so it cannot be captured.

    Quantized weights are read by `Format.dequantize`, in float32. Quantized inputs are rounded by
    `Format.round_trip`, in float32, at both projections: the rows that gate_up reads (times the router weight where
    the problem puts it on the input), and the activation's output. No rounding to the problem's dtype lies between.
    A scale for a row, or for a group in it, sees that row; a scale for the whole tensor sees all live rows of the
    call, of all experts together, and no undefined row ever. Rounding has no gradient: with quantized inputs a
    problem that needs one is declined, and a call under grad mode raises GradientError.

    `strict`: a batch that breaks any promise of its layout or of the problem raises BatchError (`strict.py`), for
    authors of dispatchers.
    """

    name: ClassVar[str] = "reference"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"), Target("cuda")),
        features=(),
        requires=(),
        dtypes=DTYPES,
        schemes=SCHEMES,
        any_scheme=True,
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

    strict: bool = False

    def __post_init__(self) -> None:
        flag("Reference", "strict", self.strict, BackendError)

    @override
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        if problem.differentiable and not isinstance(problem.scheme.inputs, Plain):
            return (Reason(ReasonCode.GRADIENT, "inputs that are not rounded", repr(problem.scheme.inputs)),)
        return ()

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
        if self.strict:
            check(batch, problem)
        match batch:
            case GroupedBatch():
                return _grouped(batch, prepared, problem)
            case BatchedBatch():
                return _batched(batch, prepared, problem)
            case _:
                return _tokens(batch, prepared, problem)

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        # Every row at every stage in the accumulation dtype, and one expert's weights if they are converted to it:
        # for quantized ones codes, scales at every value, and products.
        wide = _accumulation(problem)
        pairs = num_rows * problem.top_k if problem.layout.has_routing else num_rows
        columns = 8 * problem.hidden_size + 3 * problem.width + 8 * problem.intermediate_size
        converted = 0 if problem.dtype == wide else problem.num_weights
        if not isinstance(problem.scheme.weights, Plain):
            converted = 5 * problem.num_weights
        if not isinstance(problem.scheme.inputs, Plain):
            columns += 8 * max(problem.hidden_size, problem.intermediate_size)
        elements = converted + pairs * columns + 2 * num_rows * problem.hidden_size
        return wide.itemsize * elements + num_rows * problem.hidden_size * problem.dtype.itemsize + 4096


def _tokens(batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    ids, p = batch.routing.topk_ids, batch.routing.topk_weights
    output = torch.zeros_like(batch.hidden_states, dtype=_accumulation(problem))
    live: list[tuple[int, Tensor]] = []
    places: list[tuple[Tensor, Tensor]] = []
    for expert in range(problem.num_experts):
        token, slot = torch.where(ids == expert)
        if token.numel() == 0:
            continue
        rows = batch.hidden_states[token].to(output.dtype)
        weight = p[token, slot].to(output.dtype).unsqueeze(-1)
        live.append((expert, rows * weight if problem.weight_on_input else rows))
        places.append((token, weight))
    for (token, weight), rows in zip(places, _experts(live, weights, problem), strict=True):
        output = output.index_add(0, token, rows if problem.weight_on_input else rows * weight)
    return output.to(problem.dtype)


def _grouped(batch: GroupedBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    segments = list(grouped_segments(batch))
    live = [(expert, batch.rows[start:stop].to(_accumulation(problem))) for expert, start, stop in segments]
    pieces, at = [], 0
    for (_, start, stop), rows in zip(segments, _experts(live, weights, problem), strict=True):
        pieces += [batch.rows.new_zeros(start - at, problem.hidden_size), rows.to(problem.dtype)]
        at = stop
    return torch.cat([*pieces, batch.rows.new_zeros(batch.rows.shape[0] - at, problem.hidden_size)])


def _batched(batch: BatchedBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
    capacity = batch.rows.shape[1]
    counts = list(enumerate(slab_counts(batch)))
    live = [(expert, batch.rows[expert, :count].to(_accumulation(problem))) for expert, count in counts]
    slabs: list[Tensor] = []
    for (_, count), rows in zip(counts, _experts(live, weights, problem), strict=True):
        slabs.append(torch.cat([rows.to(problem.dtype), batch.rows.new_zeros(capacity - count, problem.hidden_size)]))
    return torch.stack(slabs)


def _experts(live: list[tuple[int, Tensor]], weights: ExpertWeights, problem: Problem) -> list[Tensor]:
    """`norm(down @ act(gate_up @ row + b1) + b2)` for all live rows, expert by expert, in the dtype of the rows."""
    experts, inputs = [expert for expert, _ in live], problem.scheme.inputs
    rows = _read_back([rows for _, rows in live], inputs)
    inner = [_first(r, expert, weights, problem) for expert, r in zip(experts, rows, strict=True)]
    inner = _read_back(inner, inputs)
    return [_second(r, expert, weights, problem) for expert, r in zip(experts, inner, strict=True)]


def _read_back(rows: list[Tensor], inputs: Format) -> list[Tensor]:
    """The live rows of all experts as a projection reads them; together, so that one scale may serve all of them."""
    if isinstance(inputs, Plain) or not rows:
        return rows
    if torch.is_grad_enabled() and any(r.requires_grad for r in rows):
        raise GradientError(f"rounding inputs to {inputs!r} has no gradient: call it under torch.no_grad()")
    return list(inputs.round_trip(torch.cat(rows)).split([len(r) for r in rows]))


def _first(rows: Tensor, expert: int, weights: ExpertWeights, problem: Problem) -> Tensor:
    first = rows @ weights.gate_up.expert(expert).dequantize(rows.dtype).T
    if weights.gate_up_bias is not None:
        first = first + weights.gate_up_bias[expert].to(rows.dtype)
    ids = torch.full(first.shape[:-1], expert, device=rows.device, dtype=torch.int32)
    return problem.activation(first, ids)


def _second(rows: Tensor, expert: int, weights: ExpertWeights, problem: Problem) -> Tensor:
    second = rows @ weights.down.expert(expert).dequantize(rows.dtype).T
    if weights.down_bias is not None:
        second = second + weights.down_bias[expert].to(rows.dtype)
    if problem.output_norm is not None and weights.output_scale is not None:
        second = problem.output_norm(second, weights.output_scale)
    return second


def _accumulation(problem: Problem) -> torch.dtype:
    return torch.float64 if problem.dtype == torch.float64 else torch.float32
