"""ActivationConformance: the kit for activations as a pytest class of three lines.

class TestMine(ActivationConformance):
    activation = Mine()
"""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from moesaic.activations import Activation
from moesaic.conformance.activation_checks import ACTIVATION_CHECKS, GOLDEN, ActivationSubject, Example
from moesaic.conformance.piece import PieceCheck, PieceConformance


class ActivationConformance(PieceConformance):
    """Derive from it, name the class `Test...` and set `activation`; pytest then collects one test per promise.

    `examples`: values from the publication of the activation, which nothing else can tell from a near relative.
    Those of the package's own activations are known.
    """

    activation: ClassVar[Activation]
    examples: ClassVar[tuple[Example, ...]] = ()
    checks: ClassVar[tuple[PieceCheck[ActivationSubject], ...]] = ACTIVATION_CHECKS

    @classmethod
    @override
    def subject(cls) -> ActivationSubject:
        return ActivationSubject(cls.activation, (*cls.examples, *GOLDEN.get(cls.activation, ())))
