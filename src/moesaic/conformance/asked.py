"""What `conform` and `BackendConformance` are asked for: a backend and checks, or one clear error."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from moesaic.backends.base import Backend
from moesaic.conformance.checks import CHECKS
from moesaic.conformance.checks.base import Check
from moesaic.errors import BackendError, ParseError


def backend_of(owner: str, given: object) -> Backend[Any]:
    """`given`, if it is an instance of a Backend; `owner` names what it was given to.

    Raises BackendError for a class, and for anything else.
    """
    if isinstance(given, type):
        raise BackendError(f"{owner} is the class {given.__name__}, but it needs an instance: {given.__name__}()")
    if not isinstance(given, Backend):
        raise BackendError(f"{owner} is {given!r}, but it needs an instance of a Backend, for instance Reference()")
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
