"""What `conform` and `BackendConformance` are asked for: a backend and checks, or one clear error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from moesaic.activations import Activation
from moesaic.backends.base import Backend
from moesaic.conformance.checks import CHECKS
from moesaic.conformance.checks.base import Check
from moesaic.dispatch import Dispatcher
from moesaic.dispatch.fleet import Fleet
from moesaic.errors import BackendError, ParseError
from moesaic.quant import Format
from moesaic.routers.base import Router

KITS: tuple[tuple[type, str], ...] = (
    (Activation, "ActivationConformance"),
    (Router, "RouterConformance"),
    (Format, "FormatConformance"),
    (Dispatcher, "DispatcherConformance"),
    (Fleet, "DispatcherConformance"),
)
"""What is no backend, and the class of the kit that tries it."""


def other_kit(given: object) -> str:
    """Where `given`, a value or a class that is no backend, is tried; empty if no kit tries such a thing."""
    kind = given if isinstance(given, type) else given.__class__
    for known, kit in KITS:
        if issubclass(kind, known):
            return f": a test class derived from moesaic.conformance.{kit} tries it (docs/conformance.md)"
    return ""


def backend_of(owner: str, given: object) -> Backend[Any]:
    """`given`, if it is an instance of a Backend; `owner` names what it was given to.

    Raises BackendError for a class, and for anything else.
    """
    if isinstance(given, type):
        instance = f"an instance: {given.__name__}()" if issubclass(given, Backend) else "an instance of a Backend"
        raise BackendError(f"{owner} is the class {given.__name__}, but it needs {instance}{other_kit(given)}")
    if not isinstance(given, Backend):
        instead = other_kit(given) or ", for instance Reference()"
        raise BackendError(f"{owner} is {given!r}, but it needs an instance of a Backend{instead}")
    return given


def checks_of(given: Sequence[Check | str]) -> tuple[Check, ...]:
    """Checks, given as they are or by name. Raises ParseError for a name that no check has and for anything else."""
    if isinstance(given, str | Check):
        raise ParseError(f"checks is {given!r}, but it needs a sequence: checks=[{given!r}]")
    if not given:
        raise ParseError("checks is empty, but it needs at least one check; leave it out for all of them")
    return tuple(_check(each) for each in given)


def check_named(name: str, owner: str) -> Check:
    """The check of that name; raises ParseError with the nearest names, or with all where none is near."""
    for check in CHECKS:
        if check.name == name:
            return check
    names = [check.name for check in CHECKS]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    needed = f"the name of a check; the nearest are {', '.join(near)}" if near else f"one of {', '.join(names)}"
    raise ParseError(f"{owner} got {name!r}, but it needs {needed}")


def _check(given: object) -> Check:
    if isinstance(given, str):
        return check_named(given, "checks")
    if not isinstance(given, Check):
        raise ParseError(f"checks holds {given!r}, but it needs checks or their names, for instance 'equals_reference'")
    return given
