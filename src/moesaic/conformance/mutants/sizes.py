"""Mutants of memory: sizes that are wrong, buffers that are left, strides that are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import Batch, TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, PLAIN, Steps
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights


def behind(values: Tensor) -> Tensor:
    """The element behind a dense tensor `[1]`, if its storage has one; else nothing `[0]`."""
    end = values.storage_offset() + values.numel()
    there = end < values.untyped_storage().nbytes() // values.element_size() and values.is_contiguous()
    return torch.as_strided(values, (int(there),), (1,), end if there else 0)


def as_dense(values: Tensor) -> Tensor:
    """What a kernel reads that takes an address and a shape."""
    return torch.as_strided(values, values.shape, torch.empty(values.shape, device="meta").stride())


@final
@dataclass(frozen=True)
class Leaps(Steps):
    """Nothing is wrong, and from 80 rows on a copy of all weights is made and stated."""

    name: ClassVar[str] = "honest_leaps"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        stated = Steps.workspace(self, problem, num_rows)
        return stated + 4 * problem.num_experts * problem.num_weights if num_rows >= 80 else stated

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        many = batch.rows.shape[:-1].numel() >= 80
        copies = [tensor.clone() for tensor in prepared.tensors] if many else []
        output = Steps.run(self, batch, prepared, problem)
        del copies
        return output


@final
@dataclass(frozen=True)
class WorkspaceTooSmall(Steps):
    """The workspace is that of one slot a token."""

    name: ClassVar[str] = "F102_workspace_too_small"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Steps.workspace(self, problem, num_rows) // 8


@final
@dataclass(frozen=True)
class WorkspaceTwice(Steps):
    """The workspace counts every expert for every row."""

    name: ClassVar[str] = "F103_experts_counted_twice"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Steps.workspace(self, problem, num_rows) * 32


@final
@dataclass(frozen=True)
class WorkspaceSquared(Steps):
    """The workspace counts a mask of rows by rows that is never made."""

    name: ClassVar[str] = "F103_workspace_of_rows_squared"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Steps.workspace(self, problem, num_rows) + 4 * num_rows**2


@final
@dataclass(frozen=True)
class WorkspaceShrinks(Steps):
    """The workspace of many rows is that of fewer: they are computed in chunks, and the output is forgotten."""

    name: ClassVar[str] = "F102_workspace_shrinks"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Steps.workspace(self, problem, num_rows if num_rows < 4 * 64 else 64)


@final
@dataclass(frozen=True)
class WorkspaceOfLastRun(Steps):
    """The workspace is asked of what ran last and not of the problem."""

    name: ClassVar[str] = "F102_workspace_of_the_last_question"
    capabilities: ClassVar[Capabilities] = PLAIN

    asked: list[int] = field(default_factory=lambda: [0], compare=False)

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        self.asked[0] += 64
        return Steps.workspace(self, problem, num_rows) + self.asked[0]


@final
@dataclass(frozen=True)
class WorkspaceFixed(Steps):
    """The workspace does not grow with the rows."""

    name: ClassVar[str] = "F102_workspace_for_a_fixed_number_of_rows"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Steps.workspace(self, problem, 32)


@final
@dataclass(frozen=True)
class CacheGrows(Steps):
    """Every call leaves its output in a cache."""

    name: ClassVar[str] = "F106_cache_grows_with_every_call"
    capabilities: ClassVar[Capabilities] = PLAIN

    kept: list[Tensor] = field(default_factory=list[Tensor], compare=False)

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        self.kept.append(total.clone())
        return total


@final
@dataclass(frozen=True)
class WritesBehindRows(Steps):
    """The element behind the rows is set to zero."""

    name: ClassVar[str] = "F104_element_behind_the_rows_written"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        behind(batch.rows).zero_()
        return Steps.run(self, batch, prepared, problem)


@final
@dataclass(frozen=True)
class WritesBehindWeights(Steps):
    """The element behind the weights is set to zero."""

    name: ClassVar[str] = "F104_element_behind_the_weights_written"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def down(self, rows: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        behind(weights.down.data).zero_()
        return Steps.down(self, rows, expert, weights)


@final
@dataclass(frozen=True)
class WritesBehindOutput(Steps):
    """A tile is stored past the end of the output."""

    name: ClassVar[str] = "F104_element_behind_the_output_written"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        output = torch.empty(batch.hidden_states.shape)
        output.copy_(Steps.tokens(self, batch, weights, problem))
        behind(output).zero_()
        return output


@final
@dataclass(frozen=True)
class ReadsBehindRows(Steps):
    """The element behind the rows is read and added with weight zero."""

    name: ClassVar[str] = "F104_element_behind_the_rows_read"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.run(self, batch, prepared, problem) + 0 * behind(batch.rows).sum()


@final
@dataclass(frozen=True)
class StridesIgnored(Steps):
    """Rows are read as if they were dense."""

    name: ClassVar[str] = "F62_strides_of_the_rows_ignored"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        return Steps.tokens(self, replace(batch, hidden_states=as_dense(batch.hidden_states)), weights, problem)


@final
@dataclass(frozen=True)
class WeightStridesIgnored(Steps):
    """Weights are read as if they were dense."""

    name: ClassVar[str] = "F62_strides_of_the_weights_ignored"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        return replace(weights, down=Quantized(Plain(), as_dense(weights.down.data)))


MUTANTS: tuple[Mutant, ...] = (
    of_backend(WorkspaceTooSmall(), "workspace", Honest()),
    of_backend(WorkspaceTwice(), "workspace", Honest()),
    of_backend(WorkspaceSquared(), "workspace", Honest()),
    of_backend(WorkspaceShrinks(), "workspace", Leaps()),
    of_backend(WorkspaceOfLastRun(), "workspace", Honest()),
    of_backend(WorkspaceFixed(), "workspace", Honest()),
    of_backend(CacheGrows(), "workspace", Honest()),
    of_backend(WritesBehindRows(), "canary", Honest()),
    of_backend(WritesBehindWeights(), "canary", Honest()),
    of_backend(WritesBehindOutput(), "canary", Honest()),
    of_backend(ReadsBehindRows(), "canary", Honest()),
    of_backend(StridesIgnored(), "strides", Honest()),
    of_backend(WeightStridesIgnored(), "strides", Honest()),
)
