"""From text on the command line to moesaic's values, through the parser of reprs; nothing is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from moesaic.backends import Backend
from moesaic.errors import ParseError
from moesaic.known_machines import KNOWN_MACHINES, known_machine
from moesaic.machine import Machine
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY

Value = TypeVar("Value")

LONGEST_SHOWN = 60
"""Letters of a wrong value that a message repeats."""


def read_value(text: str, more: Sequence[type] = ()) -> Any:
    """The value whose repr is `text`; the bare name of a class stands for it with its defaults.

    `more`: classes that are known beside those of the package, which keep their names.
    """
    return parse(text, {kind.__name__: kind for kind in (*more, *VOCABULARY)})


def read_as(kind: type[Value], text: str, option: str, more: Sequence[type] = ()) -> Value:
    """The value of class `kind` whose repr is `text`, given with `option`."""
    value = read_value(text, more)
    if not isinstance(value, kind):
        raise ParseError(f"{option} got {text[:LONGEST_SHOWN]!r}, but it needs the repr of a {kind.__name__}")
    return value


def declared_kinds(backends: Sequence[Backend[Any]]) -> tuple[type, ...]:
    """The classes of the activations and formats that `backends` declare: those of other packages are read too."""
    declared = [backend.capabilities for backend in backends]
    stored = (f.__class__ for can in declared for scheme in can.schemes for f in (scheme.weights, scheme.inputs))
    return tuple(dict.fromkeys((*(a.activation for can in declared for a in can.activations), *stored)))


def read_dtype(text: str) -> torch.dtype:
    """`bfloat16` or `torch.bfloat16`."""
    return read_value(text if text.startswith("torch.") else f"torch.{text}")


def read_machine(text: str | None) -> Machine:
    """A known machine by its name, a device of this one (`cpu`, `cuda:1`), or a Machine's repr; None is this one."""
    if text is None:
        return Machine.current()
    if text.startswith("Machine("):
        return read_as(Machine, text, "--machine")
    if text.partition(":")[0] in ("cpu", "cuda") and text not in dict(KNOWN_MACHINES):
        return Machine.current(read_device(text))
    return known_machine(text)


def read_device(text: str) -> torch.device:
    """A device by torch's name."""
    try:
        return torch.device(text)
    except RuntimeError:
        raise ParseError(f"{text!r} is not a device: it needs cpu, cuda or cuda:N") from None


def read_counts(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers above zero, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) for part in parts):
        raise ParseError(f"{option} got {text!r}, but it needs whole numbers above zero, for instance 1,16,256")
    return tuple(int(part) for part in parts)
