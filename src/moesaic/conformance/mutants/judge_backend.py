"""BackendJudge: the checks of backends, on few cases of the quick kit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.cases import cases_of
from moesaic.conformance.cells import cells_of, touched
from moesaic.conformance.checks import CHECKS, in_turn
from moesaic.conformance.checks.base import Check
from moesaic.conformance.checks.large import Large
from moesaic.conformance.crossed import TOKENS
from moesaic.conformance.declaration import faults_of
from moesaic.conformance.execution import Execution, InProcess, Job
from moesaic.conformance.judge import skipped
from moesaic.conformance.mutants.base import DECLARATION, Judge
from moesaic.conformance.torch_state import kept
from moesaic.conformance.worker import Worker
from moesaic.machine import Machine

CELLS = "cells"
"""Found if a declared cell is executed by no case, so that the kit refuses the word "conforms"."""

SEEDS = 2
"""Seeded combinations of the quick kit that mutants are tried on."""


@final
@dataclass(frozen=True)
class BackendJudge(Judge):
    """`limit`: seconds for a call, which then runs in a process of its own; None for mutants that neither hang nor die.

    `stride`: checks are tried on every so many cases only. `beyond`: elements from which an offset counts as large, so
    that the checks of large offsets are tried here, on the CPU; None leaves them out. `more`: cases beside those of the
    kit. `crossed`: also those of the full kit in which everything meets everything else. A backend that is malformed
    gets no case, as in the kit.
    """

    kind: ClassVar[str] = "backend"

    limit: float | None = None
    stride: int = 1
    beyond: int | None = None
    more: tuple[Case, ...] = ()
    crossed: bool = False

    @property
    @override
    def checks(self) -> tuple[str, ...]:
        return (CELLS, *(check.name for check in CHECKS))

    @override
    def faults(self, subject: Any, checks: Sequence[str]) -> Mapping[str, str]:
        for malformed in faults_of(subject):
            return {DECLARATION: str(malformed)}
        machine, cases = Machine.current("cpu"), (*few_cases(subject), *self.more)
        if self.crossed:
            cases = (*cases, *(case for case in cases_of(subject) if case.num_tokens in TOKENS))
        with ExitStack() as stack:
            runner = InProcess() if self.limit is None else stack.enter_context(Worker(self.limit))
            chosen = in_turn(check for check in CHECKS if check.name in checks)
            tried = {c.name: self._first(runner, c, subject, machine, cases[:: self.stride]) for c in chosen}
            found = {c.name: fault for c in CHECKS if (fault := tried.get(c.name)) is not None}
        left = _not_executed(subject, machine, cases) if CELLS in checks else ""
        return {CELLS: f"not executed: {left}", **found} if left else found

    def _first(
        self, runner: Execution, check: Check, backend: Backend[Any], machine: Machine, cases: Sequence[Case]
    ) -> str | None:
        """What the first case shows on which `check` finds something."""
        scaled = replace(check, beyond=self.beyond) if isinstance(check, Large) and self.beyond is not None else None
        for case in cases:
            against = skipped(backend, machine, check, case) if scaled is None else scaled.applies(backend, case)
            if against is None:
                with kept(torch.device(machine.device)):  # what a mutant leaves of torch's settings reaches no other
                    outcome = runner.run(Job(backend, machine, scaled or check, case))
                if outcome.status.is_fault:
                    return f"{outcome.status}: {outcome.detail}"
        return None


def few_cases(backend: Backend[Any]) -> Iterator[Case]:
    """The cases of the quick kit that differ in more than what a mutant of one activation needs."""
    combined = 0
    for case in cases_of(backend, quick=True):
        combined += case.num_tokens not in (4, 9, 19, 67, 130)
        if combined <= SEEDS:
            yield case


def _not_executed(backend: Backend[Any], machine: Machine, cases: Sequence[Case]) -> str:
    """The declared cells that every case which has them is declined for."""
    served = [case for case in cases if not backend.reasons_against(case.problem, machine)]
    executed = {cell for case in served for check in CHECKS for cell in touched(case, check.name, backend, machine)}
    return ", ".join(str(cell) for cell in cells_of(backend) if cell not in executed)
