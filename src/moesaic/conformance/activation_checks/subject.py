"""ActivationSubject: an activation under test, with values that its publication states."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor

from moesaic.activations import Activation
from moesaic.conformance.moved import SHARE, UNSET
from moesaic.errors import ActivationError, Nonconformance


@final
@dataclass(frozen=True)
class Example:
    """Where every gate is `gate` and every up is `up`, the value is `value`. `up` is not read without a gate."""

    gate: float
    up: float
    value: float
    within: float = 2e-5
    """The largest error, as a share of `value`."""


@final
@dataclass(frozen=True)
class ActivationSubject:
    """`examples`: values of this activation from its publication, computed elsewhere."""

    activation: Activation
    examples: tuple[Example, ...] = ()

    def variants(self) -> Iterator[Activation]:
        """That of expert 0, each constant of it moved alone, and all of them moved."""
        yield self.base
        names = tuple(self.base.constants())
        yield from (self.with_moved(name) for name in names)
        if len(names) > 1:
            yield replace(self.base, **{name: self.moved(name) for name in names})

    @property
    def base(self) -> Activation:
        """The activation of expert 0: where constants differ between experts, theirs."""
        return self.activation.select((0,)) if self.activation.per_expert() else self.activation

    def with_moved(self, name: str) -> Activation:
        """The activation with one constant moved."""
        return replace(self.base, **{name: self.moved(name)})

    def moved(self, name: str) -> Any:
        """Another value of the constant `name`: the first of a few that the activation takes."""
        now = self.base.constants()[name]
        if isinstance(now, bool):
            return not now
        if not isinstance(now, int | float | None):
            options = typing.get_args(typing.get_type_hints(self.base.__class__)[name])
            for option in options:
                if option != now:
                    return option
            raise Nonconformance(f"the constant {name} of {self.base!r}", "a number or one of a Literal", f"{now!r}")
        refused: ActivationError | None = None
        for value in (UNSET,) if now is None else (SHARE * now, 1.0, 2 * now, now + 1):
            if value != now:
                try:
                    replace(self.base, **{name: value})
                except ActivationError as fault:
                    refused = fault
                else:
                    return value
        raise Nonconformance(f"the constant {name} of {self.base!r}", "another value that is taken", f"{refused}")

    def numbers(self) -> tuple[str, ...]:
        """The constants that are numbers, or None for "not applied": those that may differ between experts."""
        marked = {f.name for f in fields(self.activation) if f.metadata.get("constant")}
        return tuple(name for name in self.activation.constants() if name in marked)


def rows_of(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """`[gate, up]` side by side, or the gate alone where the activation has none."""
    return torch.cat((gate, up), dim=-1) if activation.gated else gate.clone()


def grid(activation: Activation, points: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair of `points` as gate and up, `[n, n]` each; without a gate each point once, `[1, n]`."""
    if not activation.gated:
        return points.unsqueeze(0), torch.zeros_like(points).unsqueeze(0)
    gate, up = torch.meshgrid(points, points, indexing="ij")
    return gate.contiguous(), up.contiguous()


def random_rows(activation: Activation, num_rows: int, size: int, seed: int = 0) -> Tensor:
    """Rows of normal numbers with a deviation of 3, where clamps and curves are felt."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(num_rows, activation.width(size), generator=generator)
