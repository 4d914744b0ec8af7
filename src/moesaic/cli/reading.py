"""From text on the command line to moesaic's values, through the parser of reprs; nothing is evaluated."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from moesaic.errors import ParseError
from moesaic.known_machines import KNOWN_MACHINES, known_machine
from moesaic.machine import Machine
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY

Value = TypeVar("Value")


def read_value(text: str) -> Any:
    """The value whose repr is `text`; the bare name of a class stands for it with its defaults."""
    classes = {value.__name__: value for value in VOCABULARY}
    return parse(f"{text}()" if text.strip() in classes else text, classes)


def read_as(kind: type[Value], text: str, option: str) -> Value:
    """The value of class `kind` whose repr is `text`, given with `option`."""
    value = read_value(text)
    if not isinstance(value, kind):
        raise ParseError(f"{option} got {text!r}, but it needs the repr of a {kind.__name__}")
    return value


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
