"""Tuned: by a table where one fits and says something, else by the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from moesaic.errors import TuningError
from moesaic.problem import Problem
from moesaic.tuning.candidates import may_serve
from moesaic.tuning.choices import Choice
from moesaic.tuning.choosing import Chooser, Choosing, CostModel, Padding, Task
from moesaic.tuning.origin import Origin
from moesaic.tuning.table_files import Found, TableFiles


@final
@dataclass(frozen=True)
class Tuned(Choosing):
    """The tables in `directory`, by default the user's, and the shipped ones; looked up once, when a layer is bound.

    `directory` may begin with `~`. A table serves only if it is of this backend, problem, device, triton and kernels.
    Any other is ignored, and `moesaic explain` says why.
    """

    directory: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | None) or self.directory == "":
            raise TuningError(f"Tuned.directory is {self.directory!r}, but it needs a path as a string, or None")

    @override
    def chooser(self, task: Task) -> Chooser:
        otherwise = CostModel().chooser(task)
        table = self.find(task).table
        if table is None:
            return otherwise

        def chosen(num_rows: int) -> Choice:
            choice = table.at(num_rows)
            if choice is None or not may_serve(choice, task, num_rows):
                return otherwise(num_rows)
            return choice

        return chosen

    @override
    def padding(self, problem: Problem) -> Padding | None:
        return CostModel().padding(problem)

    def find(self, task: Task) -> Found:
        """The tables that serve `task`, and why others do not."""
        return TableFiles.of(self.directory).find(task.backend, task.problem, Origin.of(task.machine))
