"""Tunable: a backend on canonical weights that has several forms to compute by, and holds how it chooses among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.chosen_weights import ChosenWeights
from moesaic.backends.device_weights import DeviceWeights
from moesaic.checks import instance
from moesaic.errors import TuningError
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning.choices import Choice
from moesaic.tuning.choosing import Choosing, Task
from moesaic.tuning.tuned import Tuned
from moesaic.weights import ExpertWeights


@dataclass(frozen=True)
class Tunable(Backend[ChosenWeights]):
    """`choosing`: by tables where they fit and else by the cost model, unless told otherwise (docs/tuning.md).

    `forms`: those that the backend has.
    """

    choosing: Choosing = Tuned()

    forms: ClassVar[tuple[type[Choice], ...]]

    def __post_init__(self) -> None:
        instance(self.name, "choosing", self.choosing, Choosing, TuningError, example="CostModel()")

    def task(self, problem: Problem, machine: Machine) -> Task:
        """What this backend chooses for."""
        return Task(self.name, self.forms, problem, machine)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ChosenWeights:
        task = self.task(problem, Machine.current(weights.gate_up.data.device))
        return ChosenWeights(DeviceWeights.of(weights, problem), self.choosing.chooser(task))

    @override
    def canonical(self, prepared: ChosenWeights, problem: Problem) -> ExpertWeights:
        return prepared.weights.weights

    @override
    def tensors(self, prepared: ChosenWeights) -> tuple[Tensor, ...]:
        return prepared.weights.tensors
