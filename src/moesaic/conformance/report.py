"""Report: all outcomes of one backend, and which of its declared cells were executed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

from moesaic.conformance.cells import Cell
from moesaic.conformance.fault_group import FaultGroup, fault_groups
from moesaic.conformance.outcome import Outcome, Status
from moesaic.conformance.spelling import Spelling
from moesaic.machine import Machine


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
            "cells": [
                {"axis": r.cell.axis, "value": r.cell.value, "executed": r.executed, "reason": r.reason}
                for r in self.cells
            ],
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
