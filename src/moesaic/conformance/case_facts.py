"""What the cases of a fault have in common, and other cases do not: where an author starts to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import final

from moesaic.conformance.case import Case

MOST_FACTS = 4
"""Facts that are named; a reader follows no more, and the rest is chance."""

NUMBERS = ("num_experts", "top_k", "hidden_size", "intermediate_size", "num_tokens", "skew", "padding")
"""Fields of a case and its problem that have an order."""

SPOKEN = ("activation", "dtype", "layout", "output_norm")
"""Fields of a problem that have words of their own here."""


@final
@dataclass(frozen=True)
class Shared:
    """`facts`: what all cases of a fault have. `exact`: no case that passed has all of them."""

    facts: tuple[str, ...] = ()
    exact: bool = False


def shared(failing: Sequence[Case], passing: Sequence[Case]) -> Shared:
    """The fewest facts of all `failing` cases that set them apart from the `passing` ones, the most telling first.

    Empty for one failing case, which shares everything with itself, and where nothing passed.
    """
    if len(failing) < 2 or not passing:
        return Shared()
    left, chosen = list(passing), list[str]()
    candidates = {**dict(_having_equal(failing)), **dict(_having_bounds(failing))}  # of equally telling ones the first
    while left and candidates and len(chosen) < MOST_FACTS:
        best = min(candidates, key=lambda fact: sum(map(candidates[fact], left)))
        kept = [case for case in left if candidates[best](case)]
        if len(kept) == len(left):
            break
        chosen.append(best)
        left = kept
    return Shared(tuple(chosen), bool(chosen) and not left)


def size(case: Case) -> int:
    """Numbers that are multiplied for `case`, about: the smallest case of several is the one to repeat."""
    problem = case.problem
    return problem.num_experts * problem.num_weights + case.num_tokens * problem.top_k * problem.num_weights


def facts(case: Case) -> tuple[str, ...]:
    """Everything that can be said of a case in a word or two, for instance `bias=True` or `dtype bfloat16`."""
    return tuple(_facts(case))


def _facts(case: Case) -> Iterator[str]:
    problem = case.problem
    for field in fields(problem):
        if field.name not in SPOKEN:
            yield f"{field.name}={getattr(problem, field.name)!r}"
    yield f"output_norm={problem.output_norm!r}" if problem.output_norm is None else "an output norm"
    yield f"dtype {str(problem.dtype).removeprefix('torch.')}"
    yield f"{case.fed!r} fed"
    yield f"bound as {problem.layout!r}"
    yield problem.activation.__class__.__name__
    for name, value in problem.activation.constants().items():
        yield f"{name} per expert" if isinstance(value, tuple) else f"{name}={value!r}"
    for name in ("num_tokens", "skew", "padding", "seed"):
        yield f"{name}={getattr(case, name):g}"


Facts = Iterable[tuple[str, Callable[[Case], bool]]]
"""Facts of all failing cases, and whether another case has them too."""


def _having_equal(failing: Sequence[Case]) -> Facts:
    common = set[str].intersection(*(set(facts(case)) for case in failing))
    for fact in facts(failing[0]):
        if fact in common:
            yield fact, partial(_has, fact)


def _having_bounds(failing: Sequence[Case]) -> Facts:
    for name in NUMBERS:
        lowest, highest = (limit(_number(case, name) for case in failing) for limit in (min, max))
        yield f"{name} of at least {lowest:g}", partial(_is_within, name, lowest, float("inf"))
        yield f"{name} of at most {highest:g}", partial(_is_within, name, float("-inf"), highest)


def _has(fact: str, case: Case) -> bool:
    return fact in facts(case)


def _is_within(name: str, low: float, high: float, case: Case) -> bool:
    return low <= _number(case, name) <= high


def _number(case: Case, name: str) -> float:
    return getattr(case if name in vars(case) else case.problem, name)
