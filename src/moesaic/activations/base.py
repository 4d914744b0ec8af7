"""Activation: what an expert applies between its two projections, as a frozen value with an exact meaning.

Dimensions: I intermediate size, L experts. A gated activation reads `[gate, up]` side by side (2I columns) and
returns I columns; any other reads and returns I columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any, ClassVar, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from moesaic.checks import as_sequence, finite_number
from moesaic.errors import ActivationError

FLOAT32 = torch.finfo(torch.float32)
"""What constants are computed in."""

Constant: TypeAlias = float | tuple[float, ...]
"""One number for all experts, or one per expert."""

At: TypeAlias = Callable[[Constant], float | Tensor]
"""Reads a constant: a float, or a column tensor with the value of each row's expert."""


def constant(default: float | None, *, optional: bool = False, positive: bool = False) -> Any:
    """A field for a constant; `optional` admits None ("not applied"), `positive` refuses zero and below."""
    return field(default=default, metadata={"constant": True, "optional": optional, "positive": positive})


@dataclass(frozen=True)
class Activation(ABC):
    """The nonlinearity of an expert, and nothing else.

    To add one, copy a file beside this: a final frozen dataclass, its constants declared with `constant(...)`,
    its formula in `formula`. Construction stores every constant as a float (a per-expert one as a tuple of
    floats; a tuple of equal values is the scalar), so equal activations have one repr and one hash.
    """

    gated: ClassVar[bool]
    _given_per_expert: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.__class__, "gated", None), bool):
            raise ActivationError(
                f"{self.__class__.__name__} does not say whether it is gated: write gated: ClassVar[bool] = True"
            )
        constants = [f for f in fields(self) if f.metadata.get("constant")]
        # No field: constants that are alike compute what the scalar computes, but ranks must not compare them.
        spread = frozenset(f.name for f in constants if as_sequence(getattr(self, f.name)) is not None)
        object.__setattr__(self, "_given_per_expert", spread)
        for f in constants:
            checked = _checked(type(self).__name__, f.name, getattr(self, f.name), **_rules(f.metadata))
            object.__setattr__(self, f.name, checked)

    @abstractmethod
    def formula(self, rows: Tensor, at: At) -> Tensor:
        """The meaning, elementwise along the last dimension, in the dtype of `rows`; `at` reads the constants."""

    def width(self, intermediate_size: int) -> int:
        """Columns of the first projection: 2I if gated, else I."""
        return 2 * intermediate_size if self.gated else intermediate_size

    def __call__(
        self, rows: Float[Tensor, "*rows width"], expert_ids: Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*rows I"]:
        """The exact value of each row, computed and returned in float32 (float64 rows stay float64).

        `expert_ids` gives each row's expert and is needed only where a constant differs between experts.
        NaN stays NaN. Raises ActivationError if the width is odd for a gated activation, or ids are missing.
        """
        if self.gated and rows.shape[-1] % 2:
            raise ActivationError(
                f"{self!r} reads gate and up side by side, but the rows have {rows.shape[-1]} columns"
            )
        work = rows if rows.dtype == torch.float64 else rows.float()

        def at(value: Constant) -> float | Tensor:
            if not isinstance(value, tuple):
                return value
            if expert_ids is None:
                raise ActivationError(f"{self!r} has one constant per expert: pass expert_ids, the expert of each row")
            return column(value, work)[expert_ids.long()].unsqueeze(-1)

        return self.formula(work, at)

    def constants(self) -> dict[str, Any]:
        """Name to value of everything that parametrises this activation, in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def per_expert(self) -> dict[str, int]:
        """Name to length of the constants that differ between experts."""
        return {name: len(value) for name, value in self.constants().items() if isinstance(value, tuple)}

    def given_per_expert(self) -> frozenset[str]:
        """Names of the constants that were given for each expert, also of those that came out alike for all here.

        `select` keeps them, so a rank whose experts happen to have one value still knows that others may differ.
        """
        return self._given_per_expert.union(self.per_expert())

    def select(self, expert_ids: Sequence[int]) -> Activation:
        """The same activation for the experts `expert_ids`, in that order (the local experts of a rank)."""
        for name, length in self.per_expert().items():
            outside = [e for e in expert_ids if not 0 <= e < length]
            if outside:
                raise ActivationError(f"{type(self).__name__}.{name} holds {length} values, so no expert {outside[0]}")
        given = {name: getattr(self, name) for name in self.given_per_expert()}
        chosen = {
            name: tuple(value[e] if isinstance(value, tuple) else value for e in expert_ids)
            for name, value in given.items()
        }
        return replace(self, **chosen)


def column(values: tuple[float, ...], like: Tensor) -> Tensor:
    """`values` on the device of `like`, filled there run by run: a copy from the host could not be captured."""
    column, at = like.new_empty(len(values)), 0
    for number, run in groupby(values):
        start, at = at, at + len(tuple(run))
        column[start:at].fill_(number)
    return column


def _rules(metadata: Any) -> dict[str, bool]:
    return {"optional": metadata["optional"], "positive": metadata["positive"]}


def _checked(owner: str, name: str, value: object, *, optional: bool, positive: bool) -> Constant | None:
    if value is None:
        if optional:
            return None
        raise ActivationError(f"{owner}.{name} is None, but it needs a finite number")
    elements = as_sequence(value)
    if elements is None:
        return _number(owner, name, value, positive=positive)
    if not elements:
        raise ActivationError(f"{owner}.{name} is empty; give one number, or one per expert")
    numbers = tuple(_number(owner, f"{name}[{i}]", element, positive=positive) for i, element in enumerate(elements))
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _number(owner: str, name: str, value: object, *, positive: bool) -> float:
    number = finite_number(owner, name, value, ActivationError)
    if number != 0 and not FLOAT32.tiny <= abs(number) <= FLOAT32.max:
        raise ActivationError(f"{owner}.{name} is {number}, but it needs a number that float32 holds")
    if positive and number <= 0:
        raise ActivationError(f"{owner}.{name} is {number}, but it needs a number above zero")
    return number
