"""Checks of a value's fields when it is constructed; each names the owner, the field, what is and what was needed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable

import torch

from moesaic.errors import MoesaicError


def whole_number(owner: str, field: str, value: object, error: type[MoesaicError], *, at_least: int = 1) -> int:
    """`value` as a plain int of at least `at_least`; bools, floats and strings are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{owner}.{field} is {value!r}, but it needs a whole number of at least {at_least}")
    if int(value) < at_least:
        raise error(f"{owner}.{field} is {int(value)}, but it needs a whole number of at least {at_least}")
    return int(value)


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
    plain = value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        raise error(f"{owner}.{field} is {value!r}, but it needs a finite number")
    number = float(plain) + 0.0  # -0.0 becomes 0.0, so that equal values have one repr
    if not math.isfinite(number):
        raise error(f"{owner}.{field} is {number}, but it needs a finite number")
    return number


def as_sequence(value: object) -> tuple[object, ...] | None:
    """The elements of a tuple, list or 1-D array or tensor; None if `value` is a scalar or a string."""
    if isinstance(value, torch.Tensor):
        return tuple(value.tolist()) if value.ndim == 1 else None
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    return tuple(value)
