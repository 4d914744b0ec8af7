"""Mutants of NaN, infinity, zero and strides: what a broken model leaves, and how tensors may lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends import Reference
from moesaic.backends.capabilities import Capabilities
from moesaic.batches import Batch, BatchedBatch, TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, PLAIN, Steps
from moesaic.problem import Problem
from moesaic.quant import FP8, PerRow, Quantized, Scheme
from moesaic.weights import ExpertWeights

ROWS = replace(ONE_ACTIVATION, dtypes=(torch.bfloat16,), schemes=(Scheme(FP8(PerRow()), FP8(PerRow())),))


@dataclass(frozen=True)
class Rounded(Steps):
    """`Reference` with rounded inputs, on weights and rows that a subclass reads in its own way."""

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Reference().workspace(problem, num_rows) + 12 * problem.num_weights * problem.num_experts

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        read = replace(prepared, gate_up=self.read(prepared.gate_up), down=self.read(prepared.down))
        return self.answered(Reference().run(batch, read, problem), batch)

    def read(self, stored: Quantized) -> Quantized:
        """The weights as the mutant reads them."""
        return stored

    def answered(self, output: Tensor, batch: Batch) -> Tensor:
        """The output as the mutant leaves it."""
        del batch
        return output


@final
@dataclass(frozen=True)
class HonestRounded(Rounded):
    """Nothing is wrong, with rounded inputs."""

    name: ClassVar[str] = "honest_rounded_inputs"
    capabilities: ClassVar[Capabilities] = ROWS


@final
@dataclass(frozen=True)
class ZeroTokenIsNan(Rounded):
    """A token of zeros is divided by its dynamic scale, which is zero."""

    name: ClassVar[str] = "F50_token_of_zeros_is_nan"
    capabilities: ClassVar[Capabilities] = ROWS

    @override
    def answered(self, output: Tensor, batch: Batch) -> Tensor:
        return torch.where((batch.rows == 0).all(-1, keepdim=True), torch.nan, output)


@final
@dataclass(frozen=True)
class ZeroExpertIsNan(Rounded):
    """Scales are stored as their reciprocals, which of an expert of zeros is infinite."""

    name: ClassVar[str] = "F50_expert_of_zeros_is_nan"
    capabilities: ClassVar[Capabilities] = ROWS

    @override
    def read(self, stored: Quantized) -> Quantized:
        zeros = (stored.data.float() == 0).flatten(1).all(1).view(-1, 1, 1)
        scales = {name: torch.where(zeros, torch.nan, scale) for name, scale in stored.scales.items()}
        return Quantized(stored.format, stored.data, scales, stored.parts)


@final
@dataclass(frozen=True)
class NanWeightHidden(Steps):
    """A router weight of NaN counts as zero, so that a broken router is not seen."""

    name: ClassVar[str] = "F36_router_weight_of_nan_is_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return Steps.weight(self, batch, token, slot).nan_to_num(nan=0.0)


@final
@dataclass(frozen=True)
class NanBiasHidden(Steps):
    """NaN in the last bias is not added."""

    name: ClassVar[str] = "F06_nan_in_a_bias_is_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down_bias(self, second: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        if weights.down_bias is None:
            return second
        return second + weights.down_bias[expert].float().nan_to_num(nan=0.0)


@final
@dataclass(frozen=True)
class NanExpertHidden(Steps):
    """NaN in the weights of an expert counts as zero."""

    name: ClassVar[str] = "F06_nan_in_weights_is_zero"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Steps.workspace(self, problem, num_rows) + 8 * problem.num_weights

    @override
    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return Steps.product(self, rows, matrix.nan_to_num(nan=0.0))


@final
@dataclass(frozen=True)
class InfinityCut(Steps):
    """Rows are cut at 65504, so that an infinite one is not seen."""

    name: ClassVar[str] = "F50_infinite_rows_cut_at_65504"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gather(self, rows: Tensor, place: Tensor) -> Tensor:
        return Steps.gather(self, rows, place).clamp(-65504.0, 65504.0)


@final
@dataclass(frozen=True)
class SlabStrideAssumed(Steps):
    """Slabs are taken to follow each other without a gap where their rows are dense."""

    name: ClassVar[str] = "F62_slabs_taken_to_follow_each_other"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        if isinstance(batch, BatchedBatch) and batch.rows.stride(-1) == 1 and batch.rows.shape[1] > 1:
            rows = batch.rows
            strides = (rows.shape[1] * rows.stride(1), rows.stride(1), 1)
            batch = replace(batch, rows=torch.as_strided(rows, rows.shape, strides))
        return Steps.run(self, batch, prepared, problem)


@final
@dataclass(frozen=True)
class ExpertStrideAssumed(Steps):
    """Experts are taken to follow each other without a gap where columns of their weights are dense."""

    name: ClassVar[str] = "F62_experts_taken_to_follow_each_other"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        every = weights.gate_up.data
        if every.stride(2) == 1:
            strides = (every.shape[1] * every.stride(1), every.stride(1), 1)
            every = torch.as_strided(every, every.shape, strides)
        return self.product(rows, every[expert])


@final
@dataclass(frozen=True)
class NothingNamed(Steps):
    """Prepared weights name no tensor, so that nothing is counted, moved or released."""

    name: ClassVar[str] = "F103_prepared_weights_name_no_tensor"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tensors(self, prepared: ExpertWeights) -> tuple[Tensor, ...]:
        return ()


@final
@dataclass(frozen=True)
class BiasesNotNamed(Steps):
    """Prepared weights name their matrices only."""

    name: ClassVar[str] = "F103_prepared_biases_not_named"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tensors(self, prepared: ExpertWeights) -> tuple[Tensor, ...]:
        return (prepared.gate_up.data, prepared.down.data)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(ZeroTokenIsNan(), "zeros", HonestRounded()),
    of_backend(ZeroExpertIsNan(), "zeros", HonestRounded()),
    of_backend(NanWeightHidden(), "nan_rows", Honest()),
    of_backend(NanBiasHidden(), "nan_rows", Honest()),
    of_backend(NanExpertHidden(), "nan_rows", Honest()),
    of_backend(InfinityCut(), "nan_rows", Honest()),
    of_backend(SlabStrideAssumed(), "strides", Honest()),
    of_backend(ExpertStrideAssumed(), "strides", Honest()),
    of_backend(NothingNamed(), "canonical_weights", Honest()),
    of_backend(BiasesNotNamed(), "canonical_weights", Honest()),
)
