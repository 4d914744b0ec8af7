"""Report: all outcomes of one backend, and which of its declared cells were executed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

from moesaic.conformance.case import Case
from moesaic.conformance.cells import Cell
from moesaic.conformance.fault_group import FaultGroup, fault_groups
from moesaic.conformance.outcome import DECLINED, Outcome, Status
from moesaic.conformance.spelling import Spelling
from moesaic.machine import Machine

VALUES = "equals_reference"
"""The check of values: if it fails, most others that look at rows do."""

JUDGES_WORDS = "declines"
"""The check that judges what a backend says of a case, and never runs it."""


@final
@dataclass(frozen=True)
class CellResult:
    """A declared cell: how many outcomes executed it, and if none did, why."""

    cell: Cell
    executed: int
    reason: str = ""


@final
@dataclass(frozen=True)
class Report:
    """What was executed of the claims of `backend` on `machine`. `complete`: nothing was left out by request.

    `interrupted`: the run was stopped before its end. `spelling`: the backend in what repeats a fault, by default its
    name.
    """

    backend: str
    machine: Machine
    outcomes: tuple[Outcome, ...]
    cells: tuple[CellResult, ...]
    complete: bool = True
    interrupted: bool = False
    spelling: Spelling | None = None

    @property
    def faults(self) -> tuple[Outcome, ...]:
        """The outcomes that say that the backend is wrong."""
        return tuple(outcome for outcome in self.outcomes if outcome.status.is_fault)

    @property
    def nothing_tried(self) -> str:
        """Why, where no call of the backend was tried: it declines every case, or no check has anything to try."""
        skipped = [outcome for outcome in self.outcomes if outcome.status is Status.SKIPPED]
        if not skipped or any(o.status is not Status.SKIPPED and o.check != JUDGES_WORDS for o in self.outcomes):
            return ""
        declined = [outcome for outcome in skipped if outcome.kind == DECLINED]
        cases = len({outcome.case for outcome in declined})
        if not cases:
            return f"{self.backend}: nothing was tried: {'; '.join(sorted({o.detail for o in skipped}))}"
        named = "this case" if cases == 1 else f"all {cases} cases"
        return f"{self.backend} declines {named}: {declined[0].detail.partition(': ')[2]}"

    @property
    def skips(self) -> dict[str, int]:
        """How often a check was not tried on a case, by reason, the most frequent first."""
        return dict(Counter(o.detail for o in self.outcomes if o.status is Status.SKIPPED).most_common())

    @property
    def echoes(self) -> tuple[str, ...]:
        """The checks that fail where `equals_reference` does, in the same way, and nowhere else.

        Wrong rows show in every check that looks at rows, so these are told in one line.
        """
        values = {(fault.case, fault.status) for fault in self.faults if fault.check == VALUES}
        others = dict.fromkeys(fault.check for fault in self.faults if fault.check not in (VALUES, JUDGES_WORDS))
        found: dict[str, set[tuple[Case | None, Status]]] = {check: set() for check in others}
        for fault in self.faults:
            if fault.check in found:
                found[fault.check].add((fault.case, fault.status))
        return tuple(check for check, faults in found.items() if faults <= values)

    @property
    def groups(self) -> tuple[FaultGroup, ...]:
        """The faults, equal ones together."""
        return fault_groups(self.outcomes)

    def repetition(self, fault: Outcome) -> str:
        """What a reader types to see `fault` again."""
        return (self.spelling or Spelling(self.backend)).repetition(fault.check, fault.case)

    @property
    def not_executed(self) -> tuple[CellResult, ...]:
        """The declared cells about which this run says nothing."""
        return tuple(result for result in self.cells if not result.executed)

    @property
    def conforms(self) -> bool:
        """True only if nothing is wrong, nothing was left out, and every declared cell was executed."""
        return self.complete and not self.faults and not self.not_executed and bool(self.cells)

    @property
    def counts(self) -> dict[str, int]:
        """Outcomes by status."""
        found = Counter(outcome.status for outcome in self.outcomes)
        return {str(status): found[status] for status in Status if found[status]}

    @property
    def verdict(self) -> str:
        """One line. The word "conforms" stands in it only if it does."""
        executed = len(self.cells) - len(self.not_executed)
        if self.interrupted:
            return f"{self.backend}: interrupted: {executed} of {len(self.cells)} cells executed; no verdict"
        if self.faults:
            failed = sorted({outcome.check for outcome in self.faults})
            return f"{self.backend} does not keep its contract: {', '.join(failed)}"
        if self.conforms:
            return f"{self.backend} conforms"
        if self.nothing_tried:
            return self.nothing_tried
        if not self.complete:
            return f"{self.backend}: no fault found in the part that was asked for"
        return (
            f"{self.backend}: no fault found in {executed} of {len(self.cells)} declared cells, the others were not run"
        )

    def as_document(self) -> dict[str, object]:
        """The report for JSON; cases are reprs. Passed outcomes are counted, faults are listed and grouped."""
        named = self.spelling or Spelling(self.backend)
        return {
            "backend": self.backend,
            "machine": repr(self.machine),
            "conforms": self.conforms,
            "interrupted": self.interrupted,
            "verdict": self.verdict,
            "counts": self.counts,
            "checks": self.by_check(),
            "skips": self.skips,
            "cells": [
                {"axis": r.cell.axis, "value": r.cell.value, "executed": r.executed, "reason": r.reason}
                for r in self.cells
            ],
            "echoes": list(self.echoes),
            "groups": [group.as_document(named) for group in self.groups],
            "faults": [
                {
                    "check": fault.check,
                    "case": repr(fault.case) if fault.case is not None else None,
                    "status": str(fault.status),
                    "detail": fault.detail,
                    "command": self.repetition(fault),
                }
                for fault in self.faults
            ],
        }

    def by_check(self) -> dict[str, dict[str, int]]:
        """Outcomes by check and status."""
        found: dict[str, dict[str, int]] = {}
        for outcome in self.outcomes:
            counted = found.setdefault(outcome.check, {})
            counted[str(outcome.status)] = counted.get(str(outcome.status), 0) + 1
        return found
