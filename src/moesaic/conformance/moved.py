"""Values of an activation's constants away from their defaults, as its declaration frees them."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from moesaic.activations import Activation
from moesaic.backends.capabilities import Accepts

UNSET = 1.5
"""For a constant that is off by default (a limit): a tenth of the first projection's values reach it."""

SHARE = 0.3
"""Of a default above zero: moves every constant of the package into the range where a third of the values feel it."""


DIGITS = 4
"""After the point: a value is read and typed by people."""


def moved(kind: type[Activation], name: str) -> Any:
    """A value of the constant `name` that differs from its default and changes the answer."""
    default = kind().constants()[name]
    if isinstance(default, str):
        options = typing.get_args(typing.get_type_hints(kind)[name])
        return next(option for option in options if option != default)
    if default is None:
        return UNSET
    return round(SHARE * default, DIGITS) if default else 1.0


def moved_per_expert(kind: type[Activation], name: str, num_experts: int) -> tuple[float, ...]:
    """One such value for each expert, no two alike."""
    return tuple(round(moved(kind, name) * (1 + 0.3 * expert), DIGITS) for expert in range(num_experts))


def variants(accepts: Accepts, num_experts: int) -> Iterator[Activation]:
    """The default, each free constant moved alone, all of them, and each and all of those that are free per expert."""
    kind = accepts.activation
    free = tuple(dict.fromkeys((*accepts.scalar, *accepts.per_expert)))
    yield kind()
    yield from (kind(**{name: moved(kind, name)}) for name in free)
    if len(free) > 1:
        yield kind(**{name: moved(kind, name) for name in free})
    if num_experts > 1:
        each = {name: moved_per_expert(kind, name, num_experts) for name in accepts.per_expert}
        yield from (kind(**{name: value}) for name, value in each.items())
        if len(each) > 1:
            yield kind(**each)


def all_moved(accepts: Accepts, num_experts: int, *, each: bool) -> Activation:
    """Every free constant moved; with `each` those that are free per expert to a value of its own for every expert."""
    kind = accepts.activation
    values = {name: moved(kind, name) for name in (*accepts.scalar, *accepts.per_expert)}
    if each and num_experts > 1:
        values |= {name: moved_per_expert(kind, name, num_experts) for name in accepts.per_expert}
    return kind(**values)
