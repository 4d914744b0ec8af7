"""conform: run the kit on one backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import judge as against
from moesaic.conformance.case import Case
from moesaic.conformance.cases import cases_of
from moesaic.conformance.cells import Cell, cells_of, touched, why_not
from moesaic.conformance.checks import CHECKS, in_turn
from moesaic.conformance.checks.base import Check
from moesaic.conformance.declaration import faults_of
from moesaic.conformance.execution import Execution, InProcess, Job, in_words
from moesaic.conformance.footprint import too_large
from moesaic.conformance.outcome import DECLINED, Outcome, Status
from moesaic.conformance.report import CellResult, Report
from moesaic.machine import Machine


def conform(
    backend: Backend[Any],
    machine: Machine | None = None,
    *,
    checks: Sequence[Check] = CHECKS,
    cases: Sequence[Case] | None = None,
    quick: bool = False,
    execution: Execution | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Try every promise on every case that the declaration of `backend` stands for, on this machine.

    `cases` and `checks` restrict the run, which then cannot say that the backend conforms. `execution` is where jobs
    run, by default this process. `progress` is called with the number of jobs done and of all.
    """
    there = Machine.current() if machine is None else machine
    malformed = faults_of(backend)
    if malformed:
        refused = tuple(Outcome("declaration", None, Status.FAILED, str(fault)) for fault in malformed)
        return Report(backend.__class__.__name__, there, refused, ())
    chosen = cases_of(backend, quick=quick) if cases is None else tuple(cases)
    runner = InProcess() if execution is None else execution
    names = tuple(check.name for check in checks)
    planned = [(check, case) for case in chosen for check in in_turn(checks)]
    outcomes: list[Outcome] = []
    executed: dict[Cell, int] = dict.fromkeys(cells_of(backend), 0)
    for done, (check, case) in enumerate(planned):
        reason = skipped(backend, there, check, case)
        if reason is None:
            outcome = runner.run(Job(backend, there, check, case))
            for cell in touched(case, check.name, backend, there) & executed.keys():
                executed[cell] += outcome.status is not Status.SKIPPED
        else:
            undeclared = against(backend.capabilities, case.problem, there)  # says more than `reason`
            told = (in_words(undeclared), DECLINED) if undeclared else (reason,)
            outcome = Outcome(check.name, case, Status.SKIPPED, *told)
        outcomes.append(outcome)
        if progress is not None:
            progress(done + 1, len(planned))
    results = (CellResult(c, n, "" if n else why_not(c, backend, there, names)) for c, n in executed.items())
    complete = cases is None and tuple(checks) == CHECKS
    return Report(backend.name, there, tuple(outcomes), tuple(results), complete)


def skipped(backend: Backend[Any], machine: Machine, check: Check, case: Case) -> str | None:
    """Why `check` is not tried on `case` here; None if it is."""
    if check.device is not None and check.device != machine.device:
        return f"only a {check.device} device can break it"
    return too_large(case, machine) or check.applies(backend, case)


def jobs_of(backend: Backend[Any], machine: Machine, *, quick: bool = False) -> Iterator[Job]:
    """Every job that `conform` would run for a well-formed `backend`."""
    for case in cases_of(backend, quick=quick):
        yield from (
            Job(backend, machine, c, case) for c in in_turn(CHECKS) if skipped(backend, machine, c, case) is None
        )
