"""FaultGroup: equal faults of one check, told once: on how many cases, what those share, and the smallest to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from moesaic.conformance.case_facts import Shared, shared, size
from moesaic.conformance.outcome import Outcome, Status
from moesaic.conformance.spelling import Spelling


@final
@dataclass(frozen=True)
class FaultGroup:
    """Faults of one check, one status and one kind. `tried`: cases on which the check was run. `smallest`: to repeat.

    `shared` is what tells their cases from those that passed.
    """

    faults: tuple[Outcome, ...]
    tried: int
    smallest: Outcome
    shared: Shared

    @property
    def headline(self) -> str:
        """For instance `failed equals_reference: 38 of 120 cases, exactly those with bias=True`."""
        title = f"{self.smallest.status} {self.smallest.check}"
        if self.smallest.case is None:
            return title
        every = len(self.faults) == self.tried > 1
        counted = f"all {self.tried} cases" if every else f"{len(self.faults)} of {self.tried} cases"
        return f"{title}: {counted}, exactly those with {self.shared}" if self.shared.facts else f"{title}: {counted}"

    def as_document(self, spelling: Spelling) -> dict[str, object]:
        """The group for JSON, with what repeats its smallest case."""
        return {
            "check": self.smallest.check,
            "status": str(self.smallest.status),
            "cases": len(self.faults),
            "tried": self.tried,
            "shared": list(self.shared.facts),
            "either": self.shared.either,
            "detail": self.smallest.detail,
            "command": spelling.repetition(self.smallest.check, self.smallest.case),
        }


def fault_groups(outcomes: Sequence[Outcome]) -> tuple[FaultGroup, ...]:
    """The faults among all outcomes of a run, grouped, in the order in which each group was first seen."""
    found: dict[tuple[str, Status, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.status.is_fault:
            found.setdefault((outcome.check, outcome.status, _kind(outcome)), []).append(outcome)
    return tuple(_group(faults, outcomes) for faults in found.values())


def _kind(fault: Outcome) -> str:
    return fault.detail if fault.case is None else fault.kind  # what is malformed in a declaration is told one by one


def _group(faults: Sequence[Outcome], outcomes: Sequence[Outcome]) -> FaultGroup:
    tried = [o for o in outcomes if o.check == faults[0].check and o.status is not Status.SKIPPED]
    passing = [o.case for o in tried if o.status is Status.PASSED and o.case is not None]
    failing = [fault.case for fault in faults if fault.case is not None]
    smallest = min(faults, key=lambda fault: 0 if fault.case is None else size(fault.case))
    return FaultGroup(tuple(faults), len(tried), smallest, shared(failing, passing))
