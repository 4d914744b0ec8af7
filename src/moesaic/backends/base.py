"""Backend: who computes. Abstract or final, never in between; a declaration is never inherited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from moesaic.backends.capabilities import Capabilities, Reason, judge
from moesaic.batches import Batch
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Backend(ABC, Generic[Prepared]):
    """One way to compute the experts of a layer.

    To add one, copy `Loops` in docs/backends.md: a final frozen dataclass with a unique `name`, a complete
    `capabilities` (its docstring explains every field), and the five methods below. It holds no state: tuned tables
    are frozen fields. It imports what is heavy inside `prepare` and `run`. Add a three-line test class, and
    one line in `BACKENDS` if it belongs to the package.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def reasons_against(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        """Every reason why this backend does not serve `problem` on `machine`; empty means eligible. Pure."""
        return (*judge(self.capabilities, problem, machine), *self.further_reasons(problem, machine))

    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        """What the declaration cannot say as data; most backends have nothing to add."""
        del problem, machine
        return ()

    @abstractmethod
    def prepare(self, weights: ExpertWeights, problem: Problem) -> Prepared:
        """The weights in this backend's own form. `weights` were checked against `problem` and are not changed."""

    @abstractmethod
    def canonical(self, prepared: Prepared, problem: Problem) -> ExpertWeights:
        """The canonical weights again, bit for bit: what `prepare` got. Tensors may be shared with `prepared`.

        So a packed layer can be saved, moved between ranks or bound to another backend without a second copy.
        """

    @abstractmethod
    def tensors(self, prepared: Prepared) -> tuple[Tensor, ...]:
        """Every tensor that `prepared` keeps alive, so that a caller can count bytes and release what is held twice."""

    @abstractmethod
    def run(self, batch: Batch, prepared: Prepared, problem: Problem) -> Tensor:
        """Rows in the same places as the batch's, in the problem's dtype, never sharing memory with an input.

        Under Standard and PaddedStandard they are weighted and summed over K in float32 (`[T, H]`); under
        GroupedContiguous and BatchedExperts they are unweighted. No value on a GPU is read on the host.
        """

    @abstractmethod
    def workspace(self, problem: Problem, num_rows: int) -> int:
        """The most bytes that one call allocates, output included, for `num_rows` rows: tokens under Standard and
        PaddedStandard, rows under GroupedContiguous, L * C under BatchedExperts. Computed without running.
        """
