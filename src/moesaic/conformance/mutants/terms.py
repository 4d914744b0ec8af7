"""Mutants of what is added and multiplied: biases, router weights, the output norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import WIDE, Honest, HonestWide, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class GateUpBiasDropped(Steps):
    """The bias of the first projection is accepted and not added."""

    name: ClassVar[str] = "F11_gate_up_bias_dropped"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up_bias(self, first: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        return first


@final
@dataclass(frozen=True)
class DownBiasDropped(Steps):
    """The bias of the second projection is accepted and not added."""

    name: ClassVar[str] = "F11_down_bias_dropped"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down_bias(self, second: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        return second


@final
@dataclass(frozen=True)
class BiasOfGateOnly(Steps):
    """The bias of the first projection is added to half of its columns."""

    name: ClassVar[str] = "F11_bias_of_the_gate_only"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up_bias(self, first: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        if weights.gate_up_bias is None:
            return first
        bias = weights.gate_up_bias[expert].clone()
        bias[len(bias) // 2 :] = 0
        return first + bias


@final
@dataclass(frozen=True)
class BiasOfAnotherExpert(Steps):
    """Biases are read one expert too early."""

    name: ClassVar[str] = "F11_bias_of_the_expert_before"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down_bias(self, second: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        return Steps.down_bias(self, second, max(expert - 1, 0), weights)


@final
@dataclass(frozen=True)
class DownBiasUnweighted(Steps):
    """The bias of the second projection is added after the router weight, so K times as it is."""

    name: ClassVar[str] = "F12_down_bias_unweighted"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        if weights.down_bias is None:
            return Steps.tokens(self, batch, weights, problem)
        total = Steps.tokens(self, batch, replace(weights, down_bias=None), problem).clone()
        for expert in range(problem.num_experts):
            token, _ = self.members(batch.routing.topk_ids, expert)
            total.index_add_(0, token, weights.down_bias[expert].expand(len(token), -1))
        return total


@final
@dataclass(frozen=True)
class DownBiasTwice(Steps):
    """Two shards of the second projection each add its bias."""

    name: ClassVar[str] = "F12_down_bias_once_per_shard"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        return self.down_bias(Steps.down(self, rows, expert, weights), expert, weights)


@final
@dataclass(frozen=True)
class WeightTwice(Steps):
    """The router weight is applied twice."""

    name: ClassVar[str] = "F31_weight_twice"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def onto_output(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return rows if problem.weight_on_input else rows * weight * weight


@final
@dataclass(frozen=True)
class WeightNever(Steps):
    """The router weight is not applied."""

    name: ClassVar[str] = "F31_weight_never"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def onto_output(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return rows


@final
@dataclass(frozen=True)
class WeightOnInput(Steps):
    """The router weight is applied to the input although it belongs on the output."""

    name: ClassVar[str] = "F31_weight_on_the_input"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.tokens(self, batch, weights, replace(problem, weight_on_input=True))


@final
@dataclass(frozen=True)
class WeightOnOutput(Steps):
    """The flag for the router weight on the input is accepted and ignored."""

    name: ClassVar[str] = "F31_weight_on_input_ignored"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.tokens(self, batch, weights, replace(problem, weight_on_input=False))


@final
@dataclass(frozen=True)
class WeightOnBoth(Steps):
    """A router weight on the input is applied to the output too."""

    name: ClassVar[str] = "F31_weight_on_input_and_output"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def onto_output(self, rows: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return rows * weight


@final
@dataclass(frozen=True)
class WeightsRenormalised(Steps):
    """Router weights are divided by their sum once more."""

    name: ClassVar[str] = "F38_weights_renormalised"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        live = batch.routing.topk_ids >= 0
        sums = batch.routing.topk_weights.where(live, 0).nan_to_num().sum(1)
        return batch.routing.topk_weights[token, slot] / sums[token]


@final
@dataclass(frozen=True)
class WeightOfAnotherSlot(Steps):
    """Weights are read from the slot beside."""

    name: ClassVar[str] = "F37_weight_of_the_next_slot"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def weight(self, batch: TokenBatch, token: Tensor, slot: Tensor) -> Tensor:
        return batch.routing.topk_weights.roll(-1, 1)[token, slot]


@final
@dataclass(frozen=True)
class NormDropped(Steps):
    """The norm of what an expert answers is accepted and left out."""

    name: ClassVar[str] = "F70_output_norm_dropped"
    capabilities: ClassVar[Capabilities] = WIDE

    @override
    def norm(self, second: Tensor, weights: ExpertWeights, problem: Problem) -> Tensor:
        return second


@final
@dataclass(frozen=True)
class NormAfterSum(Steps):
    """The output norm is taken of the weighted sum instead of each answer."""

    name: ClassVar[str] = "F70_output_norm_after_the_weight"
    capabilities: ClassVar[Capabilities] = WIDE

    @override
    def norm(self, second: Tensor, weights: ExpertWeights, problem: Problem) -> Tensor:
        return second

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        total = Steps.tokens(self, batch, weights, problem)
        return Steps.norm(self, total.float(), weights, problem).to(problem.dtype)


@final
@dataclass(frozen=True)
class NormScaleAfter(Steps):
    """The scale of the output norm comes after it, as RMSNorm's does."""

    name: ClassVar[str] = "F70_output_scale_after_the_norm"
    capabilities: ClassVar[Capabilities] = WIDE

    @override
    def norm(self, second: Tensor, weights: ExpertWeights, problem: Problem) -> Tensor:
        if problem.output_norm is None or weights.output_scale is None:
            return second
        return problem.output_norm(second, weights.output_scale.new_ones(second.shape[-1])) * weights.output_scale


MUTANTS: tuple[Mutant, ...] = (
    of_backend(GateUpBiasDropped(), "equals_reference", Honest()),
    of_backend(DownBiasDropped(), "equals_reference", Honest()),
    of_backend(BiasOfGateOnly(), "equals_reference", Honest()),
    of_backend(BiasOfAnotherExpert(), "equals_reference", Honest()),
    of_backend(DownBiasUnweighted(), "equals_reference", Honest()),
    of_backend(DownBiasTwice(), "equals_reference", Honest()),
    of_backend(WeightTwice(), "exactly_once", Honest()),
    of_backend(WeightNever(), "exactly_once", Honest()),
    of_backend(WeightOnInput(), "exactly_once", Honest()),
    of_backend(WeightOnOutput(), "exactly_once", Honest()),
    of_backend(WeightOnBoth(), "exactly_once", Honest()),
    of_backend(WeightsRenormalised(), "exactly_once", Honest()),
    of_backend(WeightOfAnotherSlot(), "exactly_once", Honest()),
    of_backend(NormDropped(), "equals_reference", HonestWide()),
    of_backend(NormAfterSum(), "equals_reference", HonestWide()),
    of_backend(NormScaleAfter(), "equals_reference", HonestWide()),
)
