"""Choosing: how a backend decides by what form it computes a number of rows. A frozen field of the backend.

Bound to a layer once, in `prepare`; a call asks what came of that and remembers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

from typing_extensions import override

from moesaic.checks import flag, instance
from moesaic.errors import TuningError
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning.choices import Choice, Product
from moesaic.tuning.cost_model import choose
from moesaic.tuning.products import LEAST_MEAN_ROWS, can_gather, may_copy

Chooser: TypeAlias = Callable[[int], Choice]
"""Number of rows, at least one (tokens in a layout with routing, else rows of all experts) -> how to compute them."""


@final
@dataclass(frozen=True)
class Task:
    """What is chosen for: rows of `problem` on `machine`, by the backend of that name, which has `forms`."""

    backend: str
    forms: tuple[type[Choice], ...]
    problem: Problem
    machine: Machine

    def __post_init__(self) -> None:
        instance("Task", "backend", self.backend, str, TuningError, example='"triton_grouped"')
        instance("Task", "problem", self.problem, Problem, TuningError, example="Problem(num_experts=8, ...)")
        instance("Task", "machine", self.machine, Machine, TuningError, example='known_machine("h200")')
        if not isinstance(self.forms, tuple) or not all(_is_form(form) for form in self.forms):
            raise TuningError(f"Task.forms is {self.forms!r}, but it needs a tuple of forms, for instance (Streamed,)")


def _is_form(form: object) -> bool:
    return isinstance(form, type) and issubclass(form, Choice)


@final
@dataclass(frozen=True)
class Padding:
    """What products may add to a call: padded rows from `mean_rows` of an expert on, and whether rows are `copied`."""

    mean_rows: int
    copied: bool


@dataclass(frozen=True)
class Choosing(ABC):
    """A rule for all sizes."""

    @abstractmethod
    def chooser(self, task: Task) -> Chooser:
        """What is chosen for each number of rows. Pure, but for reading files of tables."""

    @abstractmethod
    def padding(self, problem: Problem) -> Padding | None:
        """What products may add to a call, whatever the machine; None if they are never chosen."""


@final
@dataclass(frozen=True)
class CostModel(Choosing):
    """`choose` of `cost_model.py`, whatever was measured. Without `products` all rows are streamed."""

    products: bool = True

    def __post_init__(self) -> None:
        flag("CostModel", "products", self.products, TuningError)

    @override
    def chooser(self, task: Task) -> Chooser:
        forms = tuple(form for form in task.forms if self.products or form is not Product)
        return partial(choose, task.problem, task.machine, forms=forms)

    @override
    def padding(self, problem: Problem) -> Padding | None:
        return Padding(LEAST_MEAN_ROWS, may_copy(problem)) if self.products else None


@final
@dataclass(frozen=True)
class Always(Choosing):
    """One choice for every number of rows: to measure it, or to try it in the conformance kit.

    In a layout that it cannot compute, the cost model chooses. Raises TuningError where a backend lacks the form.
    """

    choice: Choice

    def __post_init__(self) -> None:
        instance("Always", "choice", self.choice, Choice, TuningError, example="Product(gather=True)")

    @override
    def chooser(self, task: Task) -> Chooser:
        if self.choice.__class__ not in task.forms:
            has = ", ".join(form.__name__ for form in task.forms)
            raise TuningError(f"{task.backend} is to compute by {self.choice!r}, but it has {has}: choose one of these")
        if not self.choice.computes(task.problem):
            return CostModel(products=False).chooser(task)
        return self._chosen

    def _chosen(self, num_rows: int) -> Choice:
        del num_rows
        return self.choice

    @override
    def padding(self, problem: Problem) -> Padding | None:
        match self.choice:
            case Product(gather=gather):
                return Padding(1, copied=not (gather and can_gather(problem)))
            case _:
                return None
