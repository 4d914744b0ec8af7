"""The judges of activations, routers and formats: a subject with its facts, and the checks of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from typing_extensions import override

from moesaic.conformance.activation_checks import ACTIVATION_CHECKS
from moesaic.conformance.execution import described
from moesaic.conformance.format_checks import FORMAT_CHECKS
from moesaic.conformance.mutants.base import Judge
from moesaic.conformance.piece import PieceCheck
from moesaic.conformance.router_checks import ROUTER_CHECKS
from moesaic.conformance.strangers import Raised, attempt
from moesaic.errors import Nonconformance


@final
@dataclass(frozen=True)
class ActivationJudge(Judge):
    """Judges an `ActivationSubject`."""

    kind: ClassVar[str] = "activation"

    @property
    @override
    def checks(self) -> tuple[str, ...]:
        return tuple(check.name for check in ACTIVATION_CHECKS)

    @override
    def faults(self, subject: Any, checks: Sequence[str]) -> Mapping[str, str]:
        return _faults(ACTIVATION_CHECKS, subject, checks)


@final
@dataclass(frozen=True)
class RouterJudge(Judge):
    """Judges a `RouterSubject`."""

    kind: ClassVar[str] = "router"

    @property
    @override
    def checks(self) -> tuple[str, ...]:
        return tuple(check.name for check in ROUTER_CHECKS)

    @override
    def faults(self, subject: Any, checks: Sequence[str]) -> Mapping[str, str]:
        return _faults(ROUTER_CHECKS, subject, checks)


@final
@dataclass(frozen=True)
class FormatJudge(Judge):
    """Judges a `FormatSubject`."""

    kind: ClassVar[str] = "format"

    @property
    @override
    def checks(self) -> tuple[str, ...]:
        return tuple(check.name for check in FORMAT_CHECKS)

    @override
    def faults(self, subject: Any, checks: Sequence[str]) -> Mapping[str, str]:
        return _faults(FORMAT_CHECKS, subject, checks)


def _faults(known: Sequence[PieceCheck[Any]], subject: Any, names: Sequence[str]) -> Mapping[str, str]:
    tried = ((check.name, _fault(check, subject)) for check in known if check.name in names)
    return {name: fault for name, fault in tried if fault is not None}


def _fault(check: PieceCheck[Any], subject: Any) -> str | None:
    found = attempt(lambda: None if check.applies(subject) is not None else check.run(subject))
    if isinstance(found, Raised):  # whatever a piece raises is a fault that was found
        return str(found.fault) if isinstance(found.fault, Nonconformance) else described(found.fault)
    return None
