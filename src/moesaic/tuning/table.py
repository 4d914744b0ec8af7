"""Table: what was measured to be fastest for some numbers of rows of one problem, by one backend, at one origin."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import final

from moesaic.checks import finite_number, instance, whole_number
from moesaic.errors import TuningError
from moesaic.problem import Problem
from moesaic.tuning.choices import Choice
from moesaic.tuning.origin import Origin


@final
@dataclass(frozen=True)
class Entry:
    """The fastest choice for `rows` rows, and how long it and the cost model's own took: medians, from cold caches."""

    rows: int
    choice: Choice
    microseconds: float
    default_microseconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", whole_number("Entry", "rows", self.rows, TuningError))
        instance("Entry", "choice", self.choice, Choice, TuningError, example="Product()")
        for name in ("microseconds", "default_microseconds"):
            time = finite_number("Entry", name, getattr(self, name), TuningError)
            if time <= 0:
                raise TuningError(f"Entry.{name} is {time}, but it needs a time above 0")
            object.__setattr__(self, name, time)


@final
@dataclass(frozen=True)
class Table:
    """`entries` are sorted by rows, one for each number.

    An entry serves every number of rows from just above half of its own up to it, as far as no smaller entry does:
    what is fastest for more rows holds fewer, and beyond a factor of two another choice may be faster. Nothing is
    extrapolated: above the largest entry, and in wider gaps, the table says nothing.
    """

    backend: str
    problem: Problem
    origin: Origin
    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        instance("Table", "backend", self.backend, str, TuningError, example='"triton_grouped"')
        instance("Table", "origin", self.origin, Origin, TuningError, example="Origin.of(Machine.current())")
        if not isinstance(self.entries, tuple) or not all(isinstance(entry, Entry) for entry in self.entries):
            raise TuningError(f"Table.entries is {self.entries!r}, but it needs a tuple of Entry")
        instance("Table", "problem", self.problem, Problem, TuningError, example="Problem(num_experts=8, ...)")
        object.__setattr__(self, "problem", measured_problem(self.problem))
        ordered = tuple(sorted(self.entries, key=lambda entry: entry.rows))
        if len({entry.rows for entry in ordered}) < len(ordered):
            raise TuningError(f"a table has two entries for one number of rows: {[e.rows for e in ordered]}")
        object.__setattr__(self, "entries", ordered)

    def at(self, rows: int) -> Choice | None:
        """The choice for `rows` rows, or None if none was measured near enough."""
        at = bisect_left(self.entries, rows, key=lambda entry: entry.rows)
        if at == len(self.entries) or self.entries[at].rows >= 2 * rows:
            return None
        return self.entries[at].choice

    def over(self, other: Table) -> Table:
        """These entries, and those of `other` for other numbers of rows."""
        mine = {entry.rows for entry in self.entries}
        return replace(self, entries=(*self.entries, *(e for e in other.entries if e.rows not in mine)))

    def differences(self, backend: str, problem: Problem, origin: Origin) -> Iterator[str]:
        """Everything that makes this table useless for `problem` there; nothing if it fits."""
        if self.backend != backend:
            yield f"backend {self.backend}, not {backend}"
        wanted = measured_problem(problem)
        for field in fields(Problem):
            mine, theirs = getattr(self.problem, field.name), getattr(wanted, field.name)
            if mine != theirs:
                yield f"{field.name} {mine!r}, not {theirs!r}"
        yield from self.origin.differences(origin)


def measured_problem(problem: Problem) -> Problem:
    """`problem` with the fields that no kernel is chosen by at their defaults, so that such problems share a table."""
    return replace(
        problem, inactive_slots=True, duplicate_ids=True, deterministic=False, graph_capture=False, differentiable=False
    )
