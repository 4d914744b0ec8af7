"""Steps: a plain backend in steps, of which each mutant overrides one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import SwiGLU
from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, Target
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, TokenBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights

PLAIN = Capabilities(
    targets=(Target("cpu"),),
    features=(),
    requires=(),
    dtypes=(torch.float32,),
    schemes=(UNQUANTIZED,),
    any_scheme=False,
    layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
    activations=(Accepts(SwiGLU, per_expert=("alpha", "beta", "limit")),),
    any_activation=False,
    bias=True,
    output_norm=False,
    weight_on_input=True,
    inactive_slots=True,
    duplicate_ids=True,
    deterministic=True,
    graph_capture=False,
    differentiable=False,
    row_bytes=1,
    max_experts=64,
    max_top_k=8,
)
"""SwiGLU in float32 in every layout: what mutants declare for which a layout matters."""

STANDARD = replace(PLAIN, layouts=(Standard(),))
"""The same in one layout."""

ONE_ACTIVATION = replace(STANDARD, activations=(Accepts(SwiGLU),))
"""The same without a constant that is free: what most mutants declare."""

Span = tuple[int, int, int]
"""Expert, first row and number of rows."""


@dataclass(frozen=True)
class Steps(Backend[ExpertWeights]):
    """Loops over experts in float32. A subclass declares for itself, and is wrong in one step or in none."""

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
    def workspace(self, problem: Problem, num_rows: int) -> int:
        # All rows at one expert, at every stage; the sum and one copy of it; an expert's weights if they are converted.
        slots = problem.top_k if problem.layout.has_routing else 1
        columns = 3 * problem.hidden_size + 2 * problem.width + 4 * problem.intermediate_size
        converted = 0 if problem.dtype == torch.float32 else problem.num_weights
        return 4 * (num_rows * (slots * columns + 3 * problem.hidden_size) + converted) + 4096

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        match batch:
            case GroupedBatch():
                return self.placed(batch.rows, self.groups(batch), prepared, problem)
            case BatchedBatch():
                return self.placed(batch.rows.flatten(0, 1), self.slabs(batch), prepared, problem).view_as(batch.rows)
            case _:
                return self.tokens(batch, prepared, problem)

    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        """Every expert on its tokens; weighted, summed and rounded: `[T, H]`."""
        total = self.zeros(batch.hidden_states)
        ids = self.ids(batch, problem)
        for expert in self.order(problem):
            token, slot = self.members(ids, expert)
            if token.numel() == 0:
                continue
            weight = self.weight(batch, token, slot).unsqueeze(-1)
            rows = self.onto_input(self.gather(batch.hidden_states, token), weight, problem)
            rows = self.expert(rows, expert, weights, problem)
            total = self.add(total, token, self.onto_output(rows, weight, problem))
        return self.rounded(total, problem)

    def placed(self, rows: Tensor, spans: Sequence[Span], weights: ExpertWeights, problem: Problem) -> Tensor:
        """Every expert on the rows of its span, unweighted and in place: `[R, H]`."""
        output = self.zeros(rows)
        for expert, start, count in spans:
            place = torch.arange(start, start + count, device=rows.device)
            output = output.index_copy(0, place, self.expert(self.gather(rows, place), expert, weights, problem))
        return self.rounded(output, problem)

    def groups(self, batch: GroupedBatch) -> list[Span]:
        """Where the rows of each expert lie that has any."""
        pairs = zip(batch.offsets.tolist(), batch.counts.tolist(), strict=True)
        return [(expert, start, count) for expert, (start, count) in enumerate(pairs) if count]

    def slabs(self, batch: BatchedBatch) -> list[Span]:
        """The same for slabs that stand one behind the other."""
        capacity = batch.rows.shape[1]
        return [(expert, expert * capacity, count) for expert, count in enumerate(batch.counts.tolist()) if count]

    def zeros(self, rows: Tensor) -> Tensor:
        """What the results are summed in."""
        return torch.zeros_like(rows, dtype=torch.float32, memory_format=torch.contiguous_format)

    def order(self, problem: Problem) -> Sequence[int]:
        """The experts in the order in which their results are added."""
        return range(problem.num_experts)

    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        """The expert of each slot."""
        del problem
        return batch.routing.topk_ids

    def members(self, ids: Tensor, expert: int) -> tuple[Tensor, Tensor]:
        """Token and slot of every pair of `expert`."""
        token, slot = torch.where(ids == expert)
        return token, slot

    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        """The router weights of pairs."""
        return batch.routing.topk_weights[token, slot]

    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        """Rows as the projections read them."""
        return rows[place].float()

    def onto_input(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The router weight on the way in, where it belongs there."""
        return rows * weight if problem.weight_on_input else rows

    def onto_output(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The router weight on the way out, where it belongs there."""
        return rows if problem.weight_on_input else rows * weight

    def add(self, total: Tensor, token: Tensor, rows: Tensor) -> Tensor:
        """One expert's results added to those of its tokens."""
        return total.index_add(0, token, rows)

    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        """The result in the dtype of the problem."""
        return total.to(problem.dtype)

    def expert(self, rows: Tensor, expert: int, weights: ExpertWeights, problem: Problem) -> Tensor:
        """Both projections of one expert."""
        first = self.gate_up_bias(self.gate_up(rows, expert, weights), expert, weights)
        second = self.down(self.activate(first, expert, problem), expert, weights)
        return self.norm(self.down_bias(second, expert, weights), weights, problem)

    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        """The first projection."""
        return self.product(rows, weights.gate_up.data[expert])

    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        """The second projection."""
        return self.product(rows, weights.down.data[expert])

    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """Rows times a matrix that is stored `[out, in]`."""
        return rows @ matrix.float().T

    def gate_up_bias(self, first: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        """The bias of the first projection."""
        return first if weights.gate_up_bias is None else first + weights.gate_up_bias[expert].float()

    def down_bias(self, second: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        """The bias of the second projection."""
        return second if weights.down_bias is None else second + weights.down_bias[expert].float()

    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        """The activation, with the constants of `expert`."""
        return problem.activation(first, torch.full(first.shape[:-1], expert, dtype=torch.int32, device=first.device))

    def norm(self, second: Tensor, weights: ExpertWeights, problem: Problem) -> Tensor:
        """The norm of what an expert answers, where the problem has one."""
        if problem.output_norm is None or weights.output_scale is None:
            return second
        return problem.output_norm(second, weights.output_scale)
