"""Case: one problem and what is fed to it, as a value without tensors that a command line can repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from typing_extensions import override

from moesaic.checks import finite_number, instance, whole_number
from moesaic.errors import ProblemError
from moesaic.layouts import Layout
from moesaic.problem import Problem

LARGE = 1 << 22
"""Weights of a layer from which a case counts as large (a 2880 x 2880 expert has 25 million): only values and poison
are checked there, since each of the other checks would cost seconds and sees nothing that a small case hides."""

LONG = 4096
"""Columns above which a case counts as large too: it is there for one sum."""

MANY = 64
"""Experts from which most checks leave a case out too: what each takes, to prepare it or to pass it by, adds up."""


@final
@dataclass(frozen=True)
class AsBound(Layout):
    """Stands for the layout that the problem of a case is bound with; no case holds it."""

    @property
    @override
    def has_routing(self) -> bool:
        return False

    @override
    def accepts(self, produced: Layout) -> bool:
        return False


AS_BOUND = AsBound()


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """What one check is run on. Everything random comes from `seed`, so equal cases have equal contents.

    `problem`: what is bound. `fed`: the layout of the batch, which `problem.layout` must accept; by default that one.
    `num_tokens` T: the rows of the grouped and batched layouts are the active (token, slot) pairs of these tokens.
    `skew`: the expert of rank r is drawn in proportion to 1 / (1 + r)**skew; 0 is even, 40 sends every slot to one
    expert. One expert gets no row: the middle one, the first or the last, by `seed`. `padding`: share of the tokens
    without an active slot (rows that are undefined memory under PaddedStandard), half of them in the middle and half
    at the end; in the layouts without routing anything above 0 means gaps, and 1 that no expert has a row.
    """

    problem: Problem
    fed: Layout = AS_BOUND
    num_tokens: int = 19
    skew: float = 1.0
    padding: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        instance("Case", "problem", self.problem, Problem, ProblemError, example="Problem(num_experts=8, ...)")
        if self.fed == AS_BOUND:
            object.__setattr__(self, "fed", self.problem.layout)
        instance("Case", "fed", self.fed, Layout, ProblemError, example="Standard()")
        for name in ("num_tokens", "seed"):
            object.__setattr__(self, name, whole_number("Case", name, getattr(self, name), ProblemError, at_least=0))
        for name in ("skew", "padding"):
            object.__setattr__(self, name, finite_number("Case", name, getattr(self, name), ProblemError))
        if self.skew < 0 or not 0 <= self.padding <= 1:
            raise ProblemError(
                f"Case has skew={self.skew} and padding={self.padding}, but it needs a skew of at least 0 and a "
                "padding between 0 and 1"
            )
        if not self.problem.layout.accepts(self.fed):
            raise ProblemError(
                f"Case.fed is {self.fed!r}, but the problem was bound with layout={self.problem.layout!r}, which does "
                "not accept it"
            )

    @property
    def is_large(self) -> bool:
        """Whether the layer has so many weights, or so long sums, that most checks leave the case out."""
        sums = max(self.problem.hidden_size, self.problem.intermediate_size)
        return self.problem.num_experts * self.problem.num_weights >= LARGE or sums > LONG

    @property
    def has_many_experts(self) -> bool:
        """Whether it has so many experts."""
        return self.problem.num_experts >= MANY

    def changed(self, **fields: Any) -> Case:
        """The same case with some fields of its problem replaced."""
        return replace(self, problem=replace(self.problem, **fields))

    def in_layout(self, layout: Layout) -> Case:
        """The same case bound with `layout` and fed it."""
        return replace(self, problem=replace(self.problem, layout=layout), fed=layout)
