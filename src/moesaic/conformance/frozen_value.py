"""What holds for every value of the package: frozen, one repr that can be read back, and one hash."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from moesaic.errors import MoesaicError, Nonconformance
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY


def is_frozen(value: Any) -> None:
    """Raise Nonconformance if a field of `value` can be assigned."""
    for field in fields(value):
        try:
            setattr(value, field.name, getattr(value, field.name))
        except AttributeError:  # FrozenInstanceError is one
            continue
        raise Nonconformance(f"{value!r}", "a frozen value", f"{field.name} can be assigned")


def is_one_value(value: Any) -> None:
    """Raise Nonconformance unless the repr reads back as an equal value with the same hash and the same repr."""
    kind = value.__class__
    known = {known.__name__: known for known in (*VOCABULARY, kind)}
    try:
        again = parse(repr(value), known)
    except MoesaicError as fault:
        raise Nonconformance(f"the repr of a {kind.__name__}", "text that reads back", f"{value!r}: {fault}") from fault
    equal(again, value, f"{value!r} read back from its repr")
    equal(replace(value), value, f"a copy of {value!r}")


def equal(got: Any, wanted: Any, what: str) -> None:
    """Raise Nonconformance unless two values are equal, with one hash and one repr."""
    if got != wanted:
        raise Nonconformance(what, f"a value equal to {wanted!r}", f"{got!r}, which is not")
    if hash(got) != hash(wanted):
        raise Nonconformance(what, f"the hash of {wanted!r}", "another hash of an equal value")
    if repr(got) != repr(wanted):
        raise Nonconformance(what, f"the repr {wanted!r}", f"{got!r} of an equal value")
