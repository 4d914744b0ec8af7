"""FormatConformance: the kit for formats as a pytest class of three lines.

class TestMine(FormatConformance):
    format = Mine()
"""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from moesaic.conformance.format_checks import FORMAT_CHECKS, FormatSubject, StoredExample
from moesaic.conformance.piece import PieceCheck, PieceConformance
from moesaic.quant import Format


class FormatConformance(PieceConformance):
    """Derive from it, name the class `Test...` and set `format`; pytest then collects one test per promise.

    The other attributes are facts about the rounding; `FormatSubject` says what each means. The smaller the `error`
    that is stated, the more is found.
    """

    format: ClassVar[Format]
    error: ClassVar[float | None] = None
    powers: ClassVar[tuple[int, int]] = (-12, 10)
    idempotent: ClassVar[bool] = True
    exact: ClassVar[tuple[float, ...]] = ()
    examples: ClassVar[tuple[StoredExample, ...]] = ()
    checks: ClassVar[tuple[PieceCheck[FormatSubject], ...]] = FORMAT_CHECKS

    @classmethod
    @override
    def subject(cls) -> FormatSubject:
        return FormatSubject(
            cls.format,
            error=cls.error,
            powers=cls.powers,
            idempotent=cls.idempotent,
            exact=cls.exact,
            examples=cls.examples,
        )
