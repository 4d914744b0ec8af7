"""Every promise of a format that the kit tries."""

from moesaic.conformance.format_checks.contract import Forms, NonFinite, OneFormat, RoundTrip, ValuesUnchanged
from moesaic.conformance.format_checks.rounding import (
    Again,
    Errors,
    Exact,
    OneRounding,
    Ramp,
    Scaled,
    StoredExamples,
)
from moesaic.conformance.format_checks.subject import FormatSubject as FormatSubject
from moesaic.conformance.format_checks.subject import StoredExample as StoredExample
from moesaic.conformance.format_checks.tiling import Experts, Sizes, Tiles, Zeros
from moesaic.conformance.piece import PieceCheck

FORMAT_CHECKS: tuple[PieceCheck[FormatSubject], ...] = (
    StoredExamples(),
    Errors(),
    Exact(),
    Ramp(),
    Again(),
    Scaled(),
    OneRounding(),
    Tiles(),
    Sizes(),
    Experts(),
    Zeros(),
    NonFinite(),
    RoundTrip(),
    Forms(),
    ValuesUnchanged(),
    OneFormat(),
)
"""All of them, in the order in which they are tried."""
