"""Mutants of numbers: rounding, dtypes, the order of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import WIDE, Honest, HonestWide, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.layouts import PaddedStandard
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

NARROW = replace(WIDE, dtypes=(torch.bfloat16,), activations=ONE_ACTIVATION.activations, differentiable=False)
COARSE = replace(NARROW, dtypes=(torch.bfloat16, torch.float16))


@final
@dataclass(frozen=True)
class SumInBfloat16(Steps):
    """Results are summed in the dtype of the rows, and each sum is rounded."""

    name: ClassVar[str] = "F37_sum_in_the_dtype_of_the_rows"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def add(self, total: Tensor, token: Tensor, rows: Tensor) -> Tensor:
        return Steps.add(self, total, token, rows).bfloat16().float()


@final
@dataclass(frozen=True)
class WeightsInBfloat16(Steps):
    """Router weights are rounded to bfloat16."""

    name: ClassVar[str] = "F37_router_weights_in_bfloat16"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return Steps.weight(self, batch, token, slot).bfloat16().float()


@final
@dataclass(frozen=True)
class ProductsInBfloat16(Steps):
    """Sums of a projection are kept in bfloat16, eight products at a time."""

    name: ClassVar[str] = "F94_projection_accumulated_in_bfloat16"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        total = torch.zeros(len(rows), len(matrix))
        for start in range(0, rows.shape[1], 8):
            part = rows[:, start : start + 8] @ matrix[:, start : start + 8].float().T
            total = (total + part).bfloat16().float()
        return total


@final
@dataclass(frozen=True)
class TruncatesOutput(Steps):
    """The output is cut to bfloat16 instead of rounded."""

    name: ClassVar[str] = "F37_output_cut_instead_of_rounded"
    capabilities: ClassVar[Capabilities] = replace(NARROW, dtypes=(torch.float32,))

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return total.bfloat16().to(problem.dtype)


@final
@dataclass(frozen=True)
class Float16OverDeclared(Steps):
    """Float16 is declared, and computed in bfloat16."""

    name: ClassVar[str] = "F70_float16_over_declared"
    capabilities: ClassVar[Capabilities] = COARSE

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return total.bfloat16().to(problem.dtype)


@final
@dataclass(frozen=True)
class OutputInFloat32(Steps):
    """The output is in the dtype of the accumulation."""

    name: ClassVar[str] = "F37_output_in_float32"
    capabilities: ClassVar[Capabilities] = NARROW

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return total


@final
@dataclass(frozen=True)
class OrderChanges(Steps):
    """Experts are added forwards and backwards in turn."""

    name: ClassVar[str] = "F94_order_of_the_sum_changes"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    turn: list[bool] = field(default_factory=lambda: [False], compare=False)

    @override
    def order(self, problem: Problem) -> Sequence[int]:
        self.turn[0] = not self.turn[0]
        forwards = range(problem.num_experts)
        return forwards if self.turn[0] else forwards[::-1]


@final
@dataclass(frozen=True)
class ScaleOfAllRows(Steps):
    """Rows are scaled by the largest of all, padding included, where NaN does not count."""

    name: ClassVar[str] = "F19_stale_tail_sets_the_scale"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, layouts=(PaddedStandard(),))

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        largest = batch.rows.nan_to_num(nan=0.0, posinf=0.0).abs().max() if batch.rows.numel() else torch.tensor(1.0)
        scaled = (batch.rows / largest) * largest
        return Steps.tokens(self, replace(batch, hidden_states=scaled), weights, problem)


@final
@dataclass(frozen=True)
class GarbageOrdersSum(Steps):
    """Slots are sorted by id, garbage included, and summed in pairs."""

    name: ClassVar[str] = "F96_garbage_ids_order_the_sum"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        ids, order = torch.sort(batch.routing.topk_ids, dim=1, stable=True)
        sums: list[Tensor] = []
        for slot in range(ids.shape[1]):
            p = batch.routing.topk_weights.gather(1, order[:, slot : slot + 1])
            routing = replace(batch.routing, topk_ids=ids[:, slot : slot + 1].contiguous(), topk_weights=p)
            sums.append(Steps.tokens(self, replace(batch, routing=routing), weights, problem))
        while len(sums) > 1:
            sums = [torch.stack(sums[i : i + 2]).sum(0) for i in range(0, len(sums), 2)]
        return sums[0]


@final
@dataclass(frozen=True)
class EqualRowsMerged(Steps):
    """Tokens with equal rows are computed once, whatever their routing."""

    name: ClassVar[str] = "F109_equal_rows_computed_once"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        if not len(batch.hidden_states):
            return Steps.tokens(self, batch, weights, problem)
        _, same = batch.hidden_states.nan_to_num().unique(dim=0, return_inverse=True)
        first = (same.unsqueeze(1) == same).int().argmax(1)
        return Steps.tokens(self, batch, weights, problem)[first]


@final
@dataclass(frozen=True)
class GradientOfWeightsLost(Steps):
    """The router weights are detached."""

    name: ClassVar[str] = "F70_no_gradient_of_the_router"
    capabilities: ClassVar[Capabilities] = replace(WIDE, dtypes=(torch.float32,))

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return Steps.weight(self, batch, token, slot).detach()


@final
@dataclass(frozen=True)
class GradientWrong(Steps):
    """The gradient of the activation is that of its input."""

    name: ClassVar[str] = "F70_gradient_of_the_activation_skipped"
    capabilities: ClassVar[Capabilities] = replace(WIDE, dtypes=(torch.float32,))

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        inner = Steps.activate(self, first, expert, problem)
        straight = first[..., : inner.shape[-1]]
        return straight + (inner - straight).detach()


@final
@dataclass(frozen=True)
class GradientBesideFrozenWeights(Steps):
    """Rows get a gradient only if the weights they meet get one too."""

    name: ClassVar[str] = "F70_no_gradient_beside_frozen_weights"
    capabilities: ClassVar[Capabilities] = replace(WIDE, dtypes=(torch.float32,))

    @override
    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        needed = weights.gate_up.data.requires_grad
        return Steps.gate_up(self, rows if needed else rows.detach(), expert, weights)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(SumInBfloat16(), "float32_sum", HonestWide()),
    of_backend(WeightsInBfloat16(), "float32_sum", HonestWide()),
    of_backend(ProductsInBfloat16(), "equals_reference", HonestWide()),
    of_backend(TruncatesOutput(), "equals_reference", HonestWide()),
    of_backend(Float16OverDeclared(), "equals_reference", HonestWide()),
    of_backend(OutputInFloat32(), "equals_reference", HonestWide()),
    of_backend(OrderChanges(), "two_runs", Honest()),
    of_backend(ScaleOfAllRows(), "undefined_rows", Honest()),
    of_backend(GarbageOrdersSum(), "garbage_ids", Honest()),
    of_backend(EqualRowsMerged(), "exactly_once", Honest()),
    of_backend(GradientOfWeightsLost(), "gradients", HonestWide()),
    of_backend(GradientWrong(), "gradients", HonestWide()),
    of_backend(GradientBesideFrozenWeights(), "gradients", HonestWide()),
)
