"""Recorded: an execution that remembers what became of its jobs, for the report of a run that was interrupted."""

from __future__ import annotations

from typing import Any, final

from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.cells import Cell, cells_of, touched
from moesaic.conformance.execution import Execution, Job
from moesaic.conformance.outcome import Outcome, Status
from moesaic.conformance.report import CellResult, Report
from moesaic.machine import Machine


@final
class Recorded(Execution):
    """Runs jobs in `inner` and keeps their outcomes in order."""

    def __init__(self, inner: Execution) -> None:
        self.inner = inner
        self.outcomes: list[Outcome] = []

    @override
    def run(self, job: Job) -> Outcome:
        outcome = self.inner.run(job)
        self.outcomes.append(outcome)
        return outcome

    def partial_report(self, backend: Backend[Any], machine: Machine) -> Report:
        """What is known of `backend` when a run stops before its end: no verdict, and faults if any were found."""
        executed: dict[Cell, int] = dict.fromkeys(cells_of(backend), 0)
        for outcome in self.outcomes:
            if outcome.case is not None and outcome.status is not Status.SKIPPED:
                for cell in touched(outcome.case, outcome.check, backend, machine) & executed.keys():
                    executed[cell] += 1
        cells = (CellResult(cell, n, "" if n else "interrupted before it was run") for cell, n in executed.items())
        return Report(backend.name, machine, tuple(self.outcomes), tuple(cells), complete=False, interrupted=True)
