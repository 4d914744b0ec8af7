"""Checks of a value's fields when it is constructed; each names the owner, the field, what is and what was needed."""

from __future__ import annotations

import math
import numbers
from typing import Protocol, runtime_checkable

from moesaic.errors import MoesaicError


@runtime_checkable
class _Array(Protocol):
    """A scalar or an array of numpy or torch, of any number of dimensions."""

    def tolist(self) -> object: ...


def whole_number(owner: str, field: str, value: object, error: type[MoesaicError], *, at_least: int = 1) -> int:
    """`value` as a plain int of at least `at_least`, below 2**63; bools, floats and strings are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{owner}.{field} is {value!r}, but it needs a whole number of at least {at_least}")
    number = int(value)
    if number.bit_length() > 63:  # its digits could be too many to be printed
        raise error(f"{owner}.{field} is a number of {number.bit_length()} bits, but it needs at most 63")
    if number < at_least:
        raise error(f"{owner}.{field} is {number}, but it needs a whole number of at least {at_least}")
    return number


def flag(owner: str, field: str, value: object, error: type[MoesaicError]) -> bool:
    """`value` as a bool; anything else, 0 and 1 included, is refused."""
    if not isinstance(value, bool):
        raise error(f"{owner}.{field} is {value!r}, but it needs True or False")
    return value


def instance(owner: str, field: str, value: object, kind: type, error: type[MoesaicError], *, example: str) -> None:
    """Raise unless `value` is an instance of `kind`; `example` shows what to write instead."""
    if not isinstance(value, kind):
        raise error(f"{owner}.{field} is {value!r}, but it needs a {kind.__name__}, for instance {example}")


def finite_number(owner: str, field: str, value: object, error: type[MoesaicError]) -> float:
    """`value` as a plain finite float; numpy and torch scalars are taken, bool, NaN and infinity are refused."""
    plain = value.tolist() if isinstance(value, _Array) else value
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        raise error(f"{owner}.{field} is {value!r}, but it needs a finite number")
    try:
        number = float(plain) + 0.0  # -0.0 becomes 0.0, so that equal values have one repr
    except OverflowError:
        raise error(f"{owner}.{field} is too large for a float, but it needs a finite number") from None
    if not math.isfinite(number):
        raise error(f"{owner}.{field} is {number}, but it needs a finite number")
    return number


def as_sequence(value: object) -> tuple[object, ...] | None:
    """The elements of a tuple, list, range or array of numpy or torch; None for all else (a set has no order)."""
    plain = value.tolist() if isinstance(value, _Array) else value
    return tuple(plain) if isinstance(plain, tuple | list | range) else None


def option(owner: str, field: str, value: object, options: tuple[str, ...], error: type[MoesaicError]) -> str:
    """The one of `options` that equals `value`, as the plain string that stands there."""
    for known in options:
        if isinstance(value, str) and value == known:
            return known
    raise error(f"{owner}.{field} is {value!r}, but it needs one of {', '.join(map(repr, options))}")


def strings(owner: str, field: str, value: object, error: type[MoesaicError], *, example: str) -> tuple[str, ...]:
    """`value` as a tuple of strings; one string, whose letters are strings too, is refused."""
    names = tuple(name for name in value if isinstance(name, str)) if isinstance(value, tuple | list) else None
    if names is None or not isinstance(value, tuple | list) or len(names) != len(value):
        raise error(f"{owner}.{field} is {value!r}, but it needs a tuple of strings, for instance {example}")
    return names
