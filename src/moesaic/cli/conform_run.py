"""Run: what `moesaic conform` is to try; Tried: what came of it, whole or interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from moesaic.backends import Backend
from moesaic.cli.conform_progress import Telling, telling
from moesaic.conformance import Case, Check, Execution, Interrupted, Report, Worker
from moesaic.conformance import conform as run_kit
from moesaic.conformance.cells import cells_of
from moesaic.conformance.declaration import faults_of
from moesaic.conformance.spelling import Spelling
from moesaic.machine import Machine


@final
@dataclass(frozen=True)
class Tried:
    """`reports`: of the backends that were begun, the last of which is partial if the run was `interrupted`.

    `not_begun`: the others, as they were asked for. `cells`: the declared cells of all.
    """

    reports: tuple[Report, ...]
    not_begun: tuple[str, ...] = ()
    interrupted: bool = False
    cells: int = 0

    @property
    def verdict(self) -> str:
        """What is said last of a run that was interrupted."""
        executed = sum(len(report.cells) - len(report.not_executed) for report in self.reports)
        left = f"; not begun: {', '.join(self.not_begun)}" if self.not_begun else ""
        return f"interrupted: {executed} of {self.cells} cells executed; no verdict{left}"


@final
@dataclass(frozen=True)
class Run:
    """`subjects`: backends by how they were asked for. `cases`: None for all that their declarations stand for.

    `device`: as it was asked for, which is said again in what repeats a fault.
    """

    subjects: Mapping[str, Backend[Any]]
    machine: Machine
    checks: Sequence[Check]
    cases: Sequence[Case] | None = None
    quick: bool = False
    device: str | None = None

    def tried(self, limit: float) -> Tried:
        """Try everything, each call in a process of its own for at most `limit` seconds.

        KeyboardInterrupt ends it with what is known by then; the process is gone when this returns.
        """
        reports: list[Report] = []
        names = tuple(self.subjects)
        try:
            with Worker(limit) as worker, telling() as told:
                reports.extend(self._report(name, worker, told) for name in names)
        except Interrupted as stop:
            reports.append(replace(stop.report, spelling=Spelling(names[len(reports)], device=self.device)))
        except KeyboardInterrupt:  # between two backends
            pass
        else:
            return Tried(tuple(reports))
        cells = sum(len(cells_of(b)) for b in self.subjects.values() if not faults_of(b))
        return Tried(tuple(reports), names[len(reports) :], interrupted=True, cells=cells)

    def _report(self, name: str, worker: Execution, told: Telling) -> Report:
        told.begin(name)
        report = run_kit(
            self.subjects[name],
            self.machine,
            checks=self.checks,
            cases=self.cases,
            quick=self.quick,
            execution=worker,
            progress=told.advance,
            finished=told.finished,
        )
        return replace(report, spelling=Spelling(name, device=self.device))
