"""Mutants of ownership: what is given is changed, and what is returned is shared."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.layouts import PaddedStandard
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class InputWeightedInPlace(Steps):
    """The rows are multiplied by the router weight in place and divided again."""

    name: ClassVar[str] = "F27_rows_scaled_in_place"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        total = Steps.tokens(self, batch, weights, problem)
        batch.hidden_states.mul_(1 + 2.0**-20)
        return total


@final
@dataclass(frozen=True)
class GarbageIdsRewritten(Steps):
    """Ids of inactive slots are set to -1 in place."""

    name: ClassVar[str] = "F27_inactive_ids_rewritten_in_place"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        ids[(ids < 0) | (ids >= problem.num_experts)] = -1
        return ids


@final
@dataclass(frozen=True)
class PaddingZeroed(Steps):
    """Padding is set to zero in place before it is read."""

    name: ClassVar[str] = "F27_padding_zeroed_in_place"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, layouts=(PaddedStandard(),))

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        batch.hidden_states[~((ids >= 0) & (ids < problem.num_experts)).any(1)] = 0
        return ids


@final
@dataclass(frozen=True)
class CanonicalExchanged(Steps):
    """Prepare exchanges gate and up in the caller's tensor."""

    name: ClassVar[str] = "F52_canonical_weights_changed_by_prepare"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        weights.gate_up.data.copy_(weights.gate_up.data.roll(problem.intermediate_size, 1))
        return weights

    @override
    def canonical(self, prepared: ExpertWeights, problem: Problem) -> ExpertWeights:
        back = prepared.gate_up.data.roll(problem.intermediate_size, 1)
        return replace(prepared, gate_up=Quantized(Plain(), back))

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return Steps.activate(self, first.roll(problem.intermediate_size, -1), expert, problem)


@final
@dataclass(frozen=True)
class PreparedTwice(Steps):
    """Weights that were prepared before are shuffled once more."""

    name: ClassVar[str] = "F52_second_prepare_differs"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    seen: list[weakref.ref[Tensor]] = field(default_factory=list[weakref.ref[Tensor]], compare=False)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        known = any(each() is weights.gate_up.data for each in self.seen)
        self.seen[:] = [each for each in self.seen if each() is not None]
        self.seen.append(weakref.ref(weights.gate_up.data))
        return replace(weights, down=Quantized(Plain(), -weights.down.data)) if known else weights

    @override
    def canonical(self, prepared: ExpertWeights, problem: Problem) -> ExpertWeights:
        return prepared


@final
@dataclass(frozen=True)
class CanonicalRounded(Steps):
    """The canonical weights come back as bfloat16 has them."""

    name: ClassVar[str] = "F53_canonical_weights_rounded"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def canonical(self, prepared: ExpertWeights, problem: Problem) -> ExpertWeights:
        back = prepared.down.data.bfloat16().to(prepared.down.data.dtype)
        return replace(prepared, down=Quantized(Plain(), back))


@final
@dataclass(frozen=True)
class CanonicalWithoutBias(Steps):
    """The canonical weights come back without their biases."""

    name: ClassVar[str] = "F52_bias_lost_in_canonical"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def canonical(self, prepared: ExpertWeights, problem: Problem) -> ExpertWeights:
        return replace(prepared, gate_up_bias=None, down_bias=None)


@final
@dataclass(frozen=True)
class OneOutputBuffer(Steps):
    """Every call of one shape returns the same buffer."""

    name: ClassVar[str] = "F27_output_buffer_returned_again"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    kept: dict[torch.Size, Tensor] = field(default_factory=dict[torch.Size, Tensor], compare=False)

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        if total.shape not in self.kept:
            self.kept[total.shape] = torch.zeros_like(total)
        return self.kept[total.shape].copy_(total)


@final
@dataclass(frozen=True)
class TwoOutputBuffers(Steps):
    """Outputs are cut in turn out of one arena for two calls."""

    name: ClassVar[str] = "F27_outputs_cut_out_of_one_arena"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    kept: dict[torch.Size, Tensor] = field(default_factory=dict[torch.Size, Tensor], compare=False)
    turn: list[int] = field(default_factory=lambda: [0], compare=False)

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        if total.shape not in self.kept:
            self.kept[total.shape] = torch.zeros(2, *total.shape)
        self.turn[0] = 1 - self.turn[0]
        return self.kept[total.shape][self.turn[0]].copy_(total)


@final
@dataclass(frozen=True)
class OutputInTheInput(Steps):
    """The output is written into the rows that came in."""

    name: ClassVar[str] = "F27_output_in_the_memory_of_the_input"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        return batch.hidden_states.copy_(Steps.tokens(self, batch, weights, problem))


@final
@dataclass(frozen=True)
class ScratchShared(Steps):
    """The routing of a call lies where all threads keep theirs."""

    name: ClassVar[str] = "F93_routing_kept_where_threads_share_it"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    scratch: list[Tensor] = field(default_factory=list[Tensor], compare=False)

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        self.scratch[:] = [batch.routing.topk_ids]
        threading.Event().wait(0.002)  # where a kernel would run
        mine = self.scratch[0]
        return mine if mine.shape == batch.routing.topk_ids.shape else batch.routing.topk_ids


@final
@dataclass(frozen=True)
class StaleAccumulator(Steps):
    """The workspace of a shape is kept, and not zeroed before the next call."""

    name: ClassVar[str] = "F15_workspace_not_zeroed_between_calls"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    kept: dict[torch.Size, Tensor] = field(default_factory=dict[torch.Size, Tensor], compare=False)

    @override
    def add(self, total: Tensor, token: Tensor, rows: Tensor) -> Tensor:
        return total.index_add_(0, token, rows)

    @override
    def zeros(self, rows: Tensor) -> Tensor:
        return self.kept.setdefault(rows.shape, torch.zeros(rows.shape))

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return total.clone()


@final
@dataclass(frozen=True)
class RoutingOfFirstCall(Steps):
    """The routing of the first call of a shape is kept, as a graph keeps it."""

    name: ClassVar[str] = "F97_routing_of_the_first_call"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    kept: dict[tuple[torch.Size, int], Tensor] = field(
        default_factory=dict[tuple[torch.Size, int], Tensor], compare=False
    )

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        self.kept.clear()
        return weights

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        return self.kept.setdefault((ids.shape, problem.num_experts), ids)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(InputWeightedInPlace(), "inputs_unchanged", Honest()),
    of_backend(GarbageIdsRewritten(), "inputs_unchanged", Honest()),
    of_backend(PaddingZeroed(), "inputs_unchanged", Honest()),
    of_backend(CanonicalExchanged(), "inputs_unchanged", Honest()),
    of_backend(PreparedTwice(), "prepare_twice", Honest()),
    of_backend(CanonicalRounded(), "canonical_weights", Honest()),
    of_backend(CanonicalWithoutBias(), "canonical_weights", Honest()),
    of_backend(OneOutputBuffer(), "own_output", Honest()),
    of_backend(TwoOutputBuffers(), "own_output", Honest()),
    of_backend(OutputInTheInput(), "own_output", Honest()),
    of_backend(ScratchShared(), "other_calls", Honest()),
    of_backend(StaleAccumulator(), "two_runs", Honest()),
    of_backend(RoutingOfFirstCall(), "other_calls", Honest()),
)
