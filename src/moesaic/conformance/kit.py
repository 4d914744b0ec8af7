"""conform: what is asked is looked at first, then one check after another is tried, so that each can be told of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from moesaic.backends.base import Backend
from moesaic.conformance import judge
from moesaic.conformance.asked import backend_of, checks_of
from moesaic.conformance.case import Case
from moesaic.conformance.cases import cases_of
from moesaic.conformance.cells import Cell, why_not
from moesaic.conformance.checks import CHECKS, in_turn
from moesaic.conformance.checks.base import Check
from moesaic.conformance.declaration import faults_of
from moesaic.conformance.execution import Execution, InProcess
from moesaic.conformance.outcome import Outcome
from moesaic.conformance.recorded import Recorded
from moesaic.conformance.report import CellResult, Report
from moesaic.conformance.spelling import spelling
from moesaic.machine import Machine


class Interrupted(KeyboardInterrupt):
    """A run of the kit that was interrupted; `report` holds what had been tried, without a verdict."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.verdict)
        self.report = report


def conform(
    backend: Backend[Any],
    machine: Machine | None = None,
    *,
    checks: Sequence[Check | str] = CHECKS,
    cases: Sequence[Case] | None = None,
    quick: bool = False,
    execution: Execution | None = None,
    progress: Callable[[int, int], None] | None = None,
    finished: Callable[[Report], None] | None = None,
) -> Report:
    """Try every promise on every case that the declaration of `backend` stands for, on this machine.

    `cases` and `checks` (values, or their names) restrict the run, which then cannot say that the backend conforms.
    `execution` is where jobs run, by default this process. `progress` is called with the number of jobs done and of
    all, `finished` with the part of the report that each check makes, when it is done.

    Raises BackendError unless `backend` is an instance of one, ParseError for a check that is not known, and
    Interrupted, which is a KeyboardInterrupt and carries the partial report, on Ctrl-C.
    """
    asked, chosen = backend_of("conform's backend", backend), checks_of(checks)
    there = Machine.current() if machine is None else machine
    recorded = Recorded(InProcess() if execution is None else execution)
    # Every check is planned on the same cases; of a malformed declaration none can be made, and `judge` says so.
    planned = cases_of(asked, quick=quick) if cases is None and not faults_of(asked) else cases
    parts: list[Report] = []
    try:
        for done, check in enumerate(in_turn(chosen)):
            part = judge.conform(
                asked,
                there,
                checks=(check,),
                cases=planned,
                execution=recorded,
                progress=None if progress is None else _shifted(progress, done, len(chosen)),
            )
            parts.append(part)
            if not part.cells:  # the declaration is malformed: no check has a case to be tried on
                break
            if finished is not None:
                finished(part)
    except KeyboardInterrupt as stop:
        raise Interrupted(replace(recorded.partial_report(asked, there), spelling=spelling(asked))) from stop
    complete = cases is None and chosen == CHECKS
    cells = _cells(parts, asked, tuple(check.name for check in chosen))
    outcomes = _told(parts, chosen)
    return replace(parts[0], outcomes=outcomes, cells=cells, complete=complete, spelling=spelling(asked))


def _shifted(progress: Callable[[int, int], None], check: int, checks: int) -> Callable[[int, int], None]:
    """`progress` over all checks; each is planned on the same cases."""

    def advance(done: int, total: int) -> None:
        progress(check * total + done, checks * total)

    return advance


def _told(parts: Sequence[Report], checks: Sequence[Check]) -> tuple[Outcome, ...]:
    """All outcomes in the order of `checks`, which need not be that in which they were run."""
    places = {check.name: place for place, check in enumerate(checks)}
    every = (outcome for part in parts for outcome in part.outcomes)
    return tuple(sorted(every, key=lambda outcome: places.get(outcome.check, 0)))


def _cells(parts: Sequence[Report], backend: Backend[Any], checks: Sequence[str]) -> tuple[CellResult, ...]:
    executed = Counter[Cell]()
    for result in (result for part in parts for result in part.cells):
        executed[result.cell] += result.executed
    machine = parts[0].machine
    return tuple(CellResult(c, n, "" if n else why_not(c, backend, machine, checks)) for c, n in executed.items())
