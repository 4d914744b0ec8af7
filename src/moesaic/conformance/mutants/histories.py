"""Mutants of what was before: another layer, a larger call, a batch that held something else."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import Batch, TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.conformance.oracle import placed
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class WeightsPreparedLast(Steps):
    """The weights that were prepared last for a problem serve every layer that has it."""

    name: ClassVar[str] = "F93_weights_prepared_last_serve_every_layer"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    kept: dict[Problem, ExpertWeights] = field(default_factory=dict[Problem, ExpertWeights], compare=False)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        self.kept.clear()
        self.kept[problem] = weights
        return weights

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.run(self, batch, self.kept.get(problem, prepared), problem)


@final
@dataclass(frozen=True)
class WeightsByTensor(Steps):
    """What was prepared is kept by the tensor it came from, whatever that tensor holds by now."""

    name: ClassVar[str] = "F109_weights_kept_by_the_tensor_they_came_from"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    seen: list[tuple[weakref.ref[Tensor], ExpertWeights]] = field(
        default_factory=list[tuple[weakref.ref[Tensor], ExpertWeights]], compare=False
    )

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        self.seen[:] = [(made_of, prepared) for made_of, prepared in self.seen if made_of() is not None]
        for made_of, prepared in self.seen:
            if made_of() is weights.gate_up.data:
                return prepared
        packed = placed(weights, torch.clone)
        self.seen.append((weakref.ref(weights.gate_up.data), packed))
        return packed


@final
@dataclass(frozen=True)
class MemoryOfFirstPrepared(Steps):
    """Weights that are prepared again take back the memory of what they were prepared into before."""

    name: ClassVar[str] = "F52_second_prepare_takes_the_memory_of_the_first"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    seen: list[tuple[weakref.ref[Tensor], ExpertWeights]] = field(
        default_factory=list[tuple[weakref.ref[Tensor], ExpertWeights]], compare=False
    )

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        packed = placed(weights, torch.clone)
        for made_of, before in self.seen:
            if made_of() is weights.gate_up.data:
                before.down.data.zero_()
        self.seen[:] = [(weakref.ref(weights.gate_up.data), packed)]
        return packed


@final
@dataclass(frozen=True)
class TableOfLargestCall(Steps):
    """The table of ids is that of the largest call so far; a smaller one finds older ids behind its own."""

    name: ClassVar[str] = "F15_ids_of_a_larger_call_left_behind"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    table: list[Tensor] = field(default_factory=list[Tensor], compare=False)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        self.table.clear()
        return weights

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        if not self.table or self.table[0].shape[1] != ids.shape[1] or len(self.table[0]) < len(ids):
            self.table[:] = [ids]
        if not torch.equal(self.table[0][: len(ids)], ids):
            self.table[:] = [torch.cat([ids, self.table[0][len(ids) :]])]
        rest = self.table[0][len(ids) : 2 * len(ids)]
        return torch.where(ids < 0, torch.cat([rest, ids[len(rest) :]]), ids) if len(rest) else ids


@final
@dataclass(frozen=True)
class RoutingByTensor(Steps):
    """Sorted ids are kept by the tensor they came from, whatever that tensor holds by now."""

    name: ClassVar[str] = "F97_routing_kept_by_the_tensor_of_ids"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    seen: list[tuple[weakref.ref[Tensor], Tensor]] = field(
        default_factory=list[tuple[weakref.ref[Tensor], Tensor]], compare=False
    )

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        for made_of, sorted_ids in self.seen:
            if made_of() is ids:
                return sorted_ids
        self.seen[:] = [(weakref.ref(ids), ids.clone())]
        return ids


@final
@dataclass(frozen=True)
class RingOfOutputs(Steps):
    """Outputs are cut in turn out of one arena for six calls."""

    name: ClassVar[str] = "F27_outputs_cut_out_of_a_ring_of_six"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    ring: dict[torch.Size, list[Tensor]] = field(default_factory=dict[torch.Size, list[Tensor]], compare=False)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        self.ring.clear()
        return weights

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        ring = self.ring.setdefault(total.shape, [torch.zeros_like(total) for _ in range(6)])
        ring.append(ring.pop(0).copy_(total))
        return ring[-1].view(total.shape)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(WeightsPreparedLast(), "other_layers", Honest()),
    of_backend(WeightsByTensor(), "other_layers", Honest()),
    of_backend(MemoryOfFirstPrepared(), "prepare_twice", Honest()),
    of_backend(TableOfLargestCall(), "smaller_call", Honest()),
    of_backend(RoutingByTensor(), "contents_in_place", Honest()),
    of_backend(RingOfOutputs(), "own_output", Honest()),
)
