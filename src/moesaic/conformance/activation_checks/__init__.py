"""Every promise of an activation that the kit tries."""

from moesaic.conformance.activation_checks.constants import ConstantsMatter, OneValue, PerExpert, Refusals
from moesaic.conformance.activation_checks.golden import GOLDEN as GOLDEN
from moesaic.conformance.activation_checks.meaning import Examples, Extremes, Float32, NarrowInputs
from moesaic.conformance.activation_checks.rows import Elementwise, NanStays, OwnMemory, Shapes
from moesaic.conformance.activation_checks.subject import ActivationSubject as ActivationSubject
from moesaic.conformance.activation_checks.subject import Example as Example
from moesaic.conformance.piece import PieceCheck

ACTIVATION_CHECKS: tuple[PieceCheck[ActivationSubject], ...] = (
    Examples(),
    Float32(),
    NarrowInputs(),
    Extremes(),
    NanStays(),
    Elementwise(),
    Shapes(),
    OwnMemory(),
    ConstantsMatter(),
    PerExpert(),
    OneValue(),
    Refusals(),
)
"""All of them, in the order in which they are tried."""
