"""Slopes: the systematic part of an error, which is what is left of it when many values are looked at together.

Rounding to the nearest is as often too high as too low, so of random rounding the projection of the error on the
wanted rows vanishes as 1 / sqrt(n), while a factor that is off by 0.5 % stays 0.005 however many rows there are. In
bfloat16 the root mean square of rounding is 0.0045, so without this a uniform error below 1.15 % passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.conformance.tolerance import floor
from moesaic.errors import Nonconformance
from moesaic.problem import Problem

SYSTEMATIC = 0.25
"""Share of the floor's rms that may be systematic whatever the number of rows: for what rounds in a fixed place, such
as weights that a kernel reads back into the dtype of its rows, or a hardware approximation of an exponential."""

CHANCE = 10.0
"""How many standard deviations of rounding chance may explain. Measured: 5.2 at most (docs/conformance.md)."""

CARRIERS = 0.25
"""Share of the narrower projection's columns that count as independent in the slope of a row: after a product or a
square of two normal numbers few of them carry most of the answer."""

ELEMENTARY = 2.0
"""Epsilons of the arithmetic, float32 or float64, for a constant or an elementary function rounded once for all."""


@final
@dataclass(frozen=True, eq=False)
class Slopes:
    """Of each group of values: `found [G]` is `<error, wanted> / <wanted, wanted>`, `allowed [G]` how far from 0."""

    found: Tensor
    allowed: Tensor

    @property
    def worst(self) -> int | None:
        """The group that is furthest beyond what is allowed; None if all are inside."""
        beyond = self.found.abs() > self.allowed
        return int((self.found.abs() / self.allowed).argmax()) if bool(beyond.any()) else None

    def judge(self, what: str) -> None:
        """Raise Nonconformance unless each is inside; `{}` in `what` stands for the group's number."""
        group = self.worst
        if group is not None:
            wanted = f"an error of at most {float(self.allowed[group]):.2g} times the wanted values"
            raise Nonconformance(
                f"the systematic part of {what.format(group)}", wanted, f"{float(self.found[group]):+.2g} times"
            )


def row_slopes(
    problem: Problem, got: Tensor, wanted: Tensor, owner: Tensor | None = None, *, copies: float = 1.0
) -> Slopes:
    """The slope of each group of rows; `owner [R]` is the group of each row, by default one for all.

    `copies`: how many rows there are for each that differs from the others, since equal rows are rounded alike.
    """
    groups = torch.zeros(len(got), dtype=torch.int64) if owner is None else owner
    along, own = _projected(got, wanted)
    found, rows = _pooled(along.sum(1), own.sum(1), groups)
    carriers = max(1.0, CARRIERS * min(problem.hidden_size, problem.intermediate_size))
    return Slopes(found, _allowed(problem, (rows / copies).clamp(min=1.0) * carriers))


def column_slopes(problem: Problem, got: Tensor, wanted: Tensor) -> Slopes:
    """The slope of each column over all rows."""
    along, own = _projected(got, wanted)
    groups = torch.arange(wanted.shape[1]).repeat(len(wanted))
    found, values = _pooled(along.flatten(), own.flatten(), groups)
    return Slopes(found, _allowed(problem, values))


def _projected(got: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Error times wanted value, and wanted value squared, `[R, H]` in float64."""
    exact = wanted.detach().double()
    return (got.detach().double() - exact) * exact, exact.pow(2)


def _pooled(along: Tensor, own: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of each group, and how many items it rests on: n if they are equally large, 1 if one outweighs all.

    A group of zeros has slope 0; that what comes back is zero too is judged elsewhere.
    """
    empty = torch.zeros(int(groups.max()) + 1 if len(groups) else 0, dtype=torch.float64)
    total, squares, dot = (empty.index_add(0, groups, each) for each in (own, own.pow(2), along))
    return (dot / total).nan_to_num(nan=0.0), (total.pow(2) / squares).nan_to_num(nan=1.0)


def _allowed(problem: Problem, independent: Tensor) -> Tensor:
    """How far from 0 slopes may be that rest on `independent` values each."""
    rms = floor(problem.dtype, problem.scheme, max(problem.hidden_size, problem.intermediate_size)).rms
    epsilon = torch.finfo(torch.promote_types(problem.dtype, torch.float32)).eps
    return rms * (SYSTEMATIC + CHANCE / independent.sqrt()) + ELEMENTARY * epsilon
