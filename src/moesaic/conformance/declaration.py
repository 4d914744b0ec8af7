"""faults_of: what is malformed in a declaration, before any case can be made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Accepts, Capabilities, Requires, Target
from moesaic.conformance.printable import message
from moesaic.conformance.strangers import Raised, attempt
from moesaic.errors import Nonconformance
from moesaic.layouts import Layout
from moesaic.problem import DTYPES
from moesaic.quant import Scheme

LISTS = {
    "targets": (Target, True),
    "features": (str, False),
    "requires": (Requires, False),
    "schemes": (Scheme, True),
    "layouts": (Layout, True),
    "activations": (Accepts, False),
}
"""Field -> what it lists, and whether it needs at least one."""

NUMBERS = ("row_bytes", "max_experts", "max_top_k")


def faults_of(backend: Backend[Any]) -> tuple[Nonconformance, ...]:
    """Everything malformed in the class and the declaration of `backend`; empty means that cases can be made of it."""
    return (*_class_faults(backend), *(_field_faults(backend) if "capabilities" in dir(backend) else ()))


def _class_faults(backend: Backend[Any]) -> Iterator[Nonconformance]:
    kind = backend.__class__
    for declared in ("name", "capabilities"):
        if declared not in vars(kind):
            wanted = f"one of its own: write {declared}: ClassVar[...] = ... in class {kind.__name__}"
            yield Nonconformance(f"{kind.__name__}.{declared}", wanted, "none, or an inherited one")
    named = vars(kind).get("name", "inherited, which is told above")
    if not isinstance(named, str) or not named:
        yield Nonconformance(f"{kind.__name__}.name", "a name", repr(named))
    if not is_dataclass(backend) or not kind.__dict__.get("__dataclass_params__"):
        wanted = f"a frozen dataclass of its own: write @dataclass(frozen=True) above class {kind.__name__}"
        yield Nonconformance(f"the class {kind.__name__}", wanted, "no dataclass, or an inherited one")
    elif not _is_frozen(kind):
        wanted = f"a frozen dataclass: write @dataclass(frozen=True) above class {kind.__name__}"
        yield Nonconformance(f"the class {kind.__name__}", wanted, "a dataclass that can be changed")


def _is_frozen(kind: type) -> bool:
    return bool(kind.__dict__["__dataclass_params__"].frozen)


def _field_faults(backend: Backend[Any]) -> Iterator[Nonconformance]:
    can: Any = backend.capabilities
    if not isinstance(can, Capabilities):
        yield Nonconformance("capabilities", "a Capabilities", repr(can))
        return
    faults = [fault for field in fields(Capabilities) if (fault := _field_fault(field.name, getattr(can, field.name)))]
    yield from faults
    if not faults:
        yield from _contradictions(can)


def _field_fault(name: str, value: Any) -> Nonconformance | None:
    if name in LISTS:
        wanted = _list_fault(value, *LISTS[name])
    elif name == "dtypes":
        is_listed = isinstance(value, tuple) and bool(value) and all(v in DTYPES for v in value)
        wanted = None if is_listed else f"a tuple of {', '.join(map(str, DTYPES))}, not empty"
    elif name in NUMBERS:
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        wanted = None if is_number else "a whole number of at least 1"
    else:
        wanted = None if isinstance(value, bool) else "True or False"
    return None if wanted is None else Nonconformance(f"capabilities.{name}", wanted, repr(value))


def _list_fault(value: Any, kind: type, needed: bool) -> str | None:  # noqa: FBT001
    if not isinstance(value, tuple) or not all(isinstance(v, kind) for v in value) or (needed and not value):
        return f"a tuple of {kind.__name__}{', not empty' * needed}"
    return None if len(set(value)) == len(value) else "each value once"


def _contradictions(can: Capabilities) -> Iterator[Nonconformance]:
    kinds = [accepts.activation for accepts in can.activations]
    if len(set(kinds)) != len(kinds):
        yield Nonconformance("capabilities.activations", "each activation once", repr(can.activations))
    if not kinds and not can.any_activation:
        yield Nonconformance("capabilities.activations", "at least one, or any_activation", "none")
    for kind in kinds:
        built = attempt(kind)
        if isinstance(built, Raised):
            raised = f"{built.fault.__class__.__name__}: {message(built.fault)}"
            yield Nonconformance(f"{kind.__name__}()", "a default for every constant", raised)
