"""The rows that come back are those of `Reference`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import NAN
from moesaic.conformance.subject import Subject


@final
@dataclass(frozen=True)
class EqualsReference(Check):
    """Every term of the layer, in one comparison with the exact rows; this is what executes a declared cell.

    Meant for F01, F03 to F05, F07 to F13 (activation, its constants, order of gate and up, biases), F22, F24, F31, F37,
    F42, F54, F56, F58, F59, F62, F65, F70, F71: whatever a backend declares is run, each free constant moved.
    """

    name: ClassVar[str] = "equals_reference"
    meaning: ClassVar[str] = "rows equal the reference within the measured noise"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return None

    @override
    def run(self, subject: Subject, case: Case) -> None:
        got = subject.rows(case, subject.feed(case, NAN), subject.prepare(case))
        subject.compare(case, got, subject.oracle.rows(case), "rows against the reference")
