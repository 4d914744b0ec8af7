"""Mutants of backends that read quantized weights: scales of another part, block or expert, or of stale rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends import Reference
from moesaic.backends.capabilities import Capabilities
from moesaic.batches import Batch, GroupedBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.layouts import GroupedContiguous, PaddedStandard
from moesaic.problem import Problem
from moesaic.quant import FP8, PerBlock, PerTensor, Plain, Quantized, Scheme
from moesaic.weights import ExpertWeights

BLOCKS = Scheme(weights=FP8(PerBlock(32, 32)), inputs=Plain())
"""Blocks that are small, so that small layers have several, and a short last one."""

TENSORS = Scheme(weights=FP8(PerTensor()), inputs=FP8(PerTensor()))

CODED = replace(
    ONE_ACTIVATION,
    schemes=(BLOCKS, TENSORS),
    layouts=(PaddedStandard(), GroupedContiguous()),
    bias=False,
    weight_on_input=False,
)


@dataclass(frozen=True)
class Coded(Steps):
    """`Reference` on weights or rows that a subclass reads in its own way."""

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Reference().workspace(problem, num_rows)

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        read = replace(prepared, gate_up=self.read(prepared.gate_up), down=self.read(prepared.down))
        return Reference().run(self.rows(batch, problem), read, problem)

    @abstractmethod
    def read(self, stored: Quantized) -> Quantized:
        """The weights as the mutant reads them."""

    def rows(self, batch: Batch, problem: Problem) -> Batch:
        """The batch as the mutant reads it."""
        del problem
        return batch


@final
@dataclass(frozen=True)
class HonestCoded(Coded):
    """Nothing is wrong, with quantized weights and inputs."""

    name: ClassVar[str] = "honest_coded"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        return stored


@final
@dataclass(frozen=True)
class ScaleIgnored(Coded):
    """Scales are taken as one."""

    name: ClassVar[str] = "F45_scales_ignored"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        return with_scales(stored, torch.ones_like(stored.scales["scale"]))


@final
@dataclass(frozen=True)
class ScaleInverted(Coded):
    """Weights are divided by their scale."""

    name: ClassVar[str] = "F45_scales_inverted"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        return with_scales(stored, 1 / stored.scales["scale"])


@final
@dataclass(frozen=True)
class ScaleOfTheGate(Coded):
    """The scale of the gate serves up too."""

    name: ClassVar[str] = "F46_scale_of_the_gate_for_up"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        scale = stored.scales["scale"]
        if stored.parts == 1:
            return stored
        half = scale.shape[1] // 2
        return with_scales(stored, torch.cat([scale[:, :half], scale[:, :half]], dim=1))


@final
@dataclass(frozen=True)
class ScaleOfExpertZero(Coded):
    """The scales of expert 0 serve all experts."""

    name: ClassVar[str] = "F46_scales_of_expert_0"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        scale = stored.scales["scale"]
        return with_scales(stored, scale[:1].expand_as(scale).contiguous())


@final
@dataclass(frozen=True)
class ScaleOfNextExpert(Coded):
    """Scales lie one expert off their weights, as after a migration that moved the weights only."""

    name: ClassVar[str] = "F90_scales_one_expert_off"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        return with_scales(stored, stored.scales["scale"].roll(1, 0))


@final
@dataclass(frozen=True)
class BlocksTransposed(Coded):
    """Scale blocks are read column by column."""

    name: ClassVar[str] = "F51_scale_blocks_read_by_column"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        scale = stored.scales["scale"]
        return with_scales(stored, scale.mT.reshape(scale.shape))


@final
@dataclass(frozen=True)
class ShortBlockScale(Coded):
    """A last block that is short takes the scale of the block before it."""

    name: ClassVar[str] = "F56_scale_of_a_short_last_block"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        scale = stored.scales["scale"].clone()
        if scale.shape[-1] > 1:
            scale[..., -1] = scale[..., -2]
        return with_scales(stored, scale)


@final
@dataclass(frozen=True)
class StaleRowsSetScale(Coded):
    """Undefined rows take part in the scale that all rows share, where NaN does not count."""

    name: ClassVar[str] = "F19_stale_rows_set_the_scale_of_all"
    capabilities: ClassVar[Capabilities] = CODED

    @override
    def read(self, stored: Quantized) -> Quantized:
        return stored

    @override
    def rows(self, batch: Batch, problem: Problem) -> Batch:
        if isinstance(problem.scheme.inputs, Plain) or not batch.rows.numel():
            return batch
        rounded = problem.scheme.inputs.round_trip(batch.rows)
        if isinstance(batch, GroupedBatch):
            return replace(batch, rows=rounded)
        return replace(batch, hidden_states=rounded)


def with_scales(stored: Quantized, scale: Tensor) -> Quantized:
    """The same codes with other scales."""
    return Quantized(stored.format, stored.data, {"scale": scale}, stored.parts)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(ScaleIgnored(), "equals_reference", HonestCoded()),
    of_backend(ScaleInverted(), "equals_reference", HonestCoded()),
    of_backend(ScaleOfTheGate(), "equals_reference", HonestCoded()),
    of_backend(ScaleOfExpertZero(), "equals_reference", HonestCoded()),
    of_backend(ScaleOfNextExpert(), "equals_reference", HonestCoded()),
    of_backend(BlocksTransposed(), "equals_reference", HonestCoded()),
    of_backend(ShortBlockScale(), "equals_reference", HonestCoded()),
    of_backend(StaleRowsSetScale(), "undefined_rows", HonestCoded()),
)
