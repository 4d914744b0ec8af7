"""The kinds of field that routers have: what each may hold, checked and stored in one form when a router is built.

Each function returns the metadata of a dataclass field: `top_k: int = field(metadata=count(at_most="num_experts"))`.
Equal routers thus have one repr and one hash, whatever numpy or torch scalars they were built from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import torch
from torch import Tensor

from moesaic.checks import finite_number, flag, whole_number
from moesaic.errors import RouterError

Check: TypeAlias = Callable[[Any, str, object], object]
"""Takes a router, the name of a field and its value; returns the value to store, or raises RouterError."""


def check_fields(router: Any) -> None:
    """Check and store every field of `router` that declares a kind, in order."""
    for f in fields(router):
        check: Check | None = f.metadata.get("check")
        if check is not None:
            object.__setattr__(router, f.name, check(router, f.name, getattr(router, f.name)))


def count(*, at_most: str | None = None) -> Mapping[str, Check]:
    """A whole number of at least 1 and, if given, at most the earlier field `at_most`."""

    def check(router: Any, name: str, value: object) -> int:
        owner = type(router).__name__
        number = whole_number(owner, name, value, RouterError)
        if at_most is not None and number > getattr(router, at_most):
            raise RouterError(f"{owner}.{name} is {number}, but it needs at most {at_most}={getattr(router, at_most)}")
        return number

    return {"check": check}


def switch() -> Mapping[str, Check]:
    """True or False."""
    return {"check": lambda router, name, value: flag(type(router).__name__, name, value, RouterError)}


def number(*, zero: bool) -> Mapping[str, Check]:
    """A finite number above zero; `zero` admits zero itself."""

    def check(router: Any, name: str, value: object) -> float:
        owner = type(router).__name__
        checked = finite_number(owner, name, value, RouterError)
        if checked < 0 or (checked == 0 and not zero):
            raise RouterError(
                f"{owner}.{name} is {checked}, but it needs a number {'of at least' if zero else 'above'} 0"
            )
        return checked

    return {"check": check}


def per_expert(*others: str) -> Mapping[str, Check]:
    """A floating tensor with one value for each of `num_experts`, plus those counted by `others`; stored as float32."""

    def check(router: Any, name: str, value: object) -> Tensor:
        owner = type(router).__name__
        needed = sum(getattr(router, counted) for counted in ("num_experts", *others))
        if not isinstance(value, Tensor):
            raise RouterError(f"{owner}.{name} is {value!r}, but it needs a floating tensor of shape ({needed},)")
        if value.shape != (needed,) or not value.is_floating_point():
            raise RouterError(
                f"{owner}.{name} is {value.dtype} of shape {tuple(value.shape)}, "
                f"but it needs a floating tensor of shape ({needed},): one value per expert"
            )
        return value if value.dtype == torch.float64 else value.float()

    return {"check": check}
