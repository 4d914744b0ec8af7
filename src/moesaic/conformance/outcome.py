"""Outcome: what became of one check on one case."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from moesaic.conformance.case import Case
from moesaic.conformance.case_text import case_text

DECLINED = "declined"
"""The kind of outcomes that were skipped because the backend declines the case."""


@final
class Status(StrEnum):
    """`failed`: the promise is not kept. `errored`: an exception. `hung`, `crashed`: the process had to be replaced.

    `skipped`: not tried, for a reason that is stated.
    """

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    HUNG = "hung"
    CRASHED = "crashed"
    SKIPPED = "skipped"

    @property
    def is_fault(self) -> bool:
        """Whether the backend did something wrong."""
        return self not in (Status.PASSED, Status.SKIPPED)


@final
@dataclass(frozen=True)
class Outcome:
    """`check` is the name of a check, or "declaration" with no case. `detail` says what was wanted and got, or why.

    `kind` is the same for faults that differ in their figures only, and DECLINED for a case that the backend declines.
    """

    check: str
    case: Case | None
    status: Status
    detail: str = ""
    kind: str = ""

    def command(self, backend: str) -> str:
        """The command line that repeats it; `backend` is a name, an entry point, or `module:Class`."""
        return command(backend, self.check, self.case)


def command(backend: str, check: str, case: Case | None) -> str:
    """The command line that tries one check of `backend` on one case; without a case, its declaration."""
    chosen = "" if case is None else f" --check {check} --case {shlex.quote(case_text(case))}"
    return f"moesaic conform {shlex.quote(backend)}{chosen}"
