"""What the cases of a fault have in common, and other cases do not: where an author starts to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import final

from moesaic.conformance.case import Case

PLAIN_FACTS = 2
"""Facts that may have to meet before two that stand for a fault each are looked for."""

MOST_FACTS = 4
"""Facts that may have to meet at all; a reader follows no more, and the rest is chance."""

COMMON = 0.9
"""Share of the passing cases from which a fact is no news: nearly all cases have it."""

FEWEST = 2
"""Cases that have each of two facts; any single case has facts of its own."""

NUMBERS = ("num_experts", "top_k", "hidden_size", "intermediate_size", "num_tokens", "skew", "padding")
"""Fields of a case and its problem that have an order."""

SPOKEN = ("activation", "dtype", "layout", "output_norm")
"""Fields of a problem that have words of their own here."""


Has = Callable[[Case], bool]
"""Whether a case has a fact."""


@final
@dataclass(frozen=True)
class Shared:
    """`facts`: what tells the cases of a fault from those that passed; empty if nothing does.

    Each failing case has all of them and no passing case has; or, with `either`, each has one of the two, which are
    then followed by how many have it, and no passing case has any.
    """

    facts: tuple[str, ...] = ()
    either: bool = False

    def __str__(self) -> str:
        return ", or ".join(self.facts) if self.either else ", ".join(self.facts)


def shared(failing: Sequence[Case], passing: Sequence[Case]) -> Shared:
    """The fewest facts that set all `failing` cases apart from all `passing` ones, the most telling first.

    Empty where no few facts do, for one failing case, which shares everything with itself, and where nothing passed.
    """
    if len(failing) < 2 or not passing:
        return Shared()
    every = {**dict(_having_equal(failing)), **dict(_having_bounds(failing))}  # of equally telling ones the first
    together = _together(every, passing)
    if together and len(together) <= PLAIN_FACTS:
        return Shared(together)
    return _either(failing, passing) or Shared(together)


def _together(candidates: Mapping[str, Has], passing: Sequence[Case]) -> tuple[str, ...]:
    """The facts that no passing case has all of; empty if there are none, or if there are too many."""
    left, chosen = list(passing), list[str]()
    telling = {fact: has for fact, has in candidates.items() if sum(map(has, passing)) <= COMMON * len(passing)}
    while left and telling and len(chosen) < MOST_FACTS:
        best = min(telling, key=lambda fact: sum(map(telling[fact], left)))
        kept = [case for case in left if telling[best](case)]
        if len(kept) == len(left):
            break
        chosen.append(best)
        left = kept
    return () if left else tuple(chosen)


def _either(failing: Sequence[Case], passing: Sequence[Case]) -> Shared | None:
    """Two facts that no passing case has and that explain every failing case, the one of more cases first."""
    known = {fact for case in passing for fact in facts(case)}
    having: dict[str, set[int]] = {}
    for index, case in enumerate(failing):
        for fact in facts(case):
            if fact not in known:
                having.setdefault(fact, set()).add(index)
    often = sorted((fact for fact in having if len(having[fact]) >= FEWEST), key=lambda fact: -len(having[fact]))
    everything = set(range(len(failing)))
    for first in often:
        left = everything - having[first]
        others = [fact for fact in often if left and left <= having[fact] and having[first] - having[fact]]
        # One case that is left has many facts by chance: then only a single field of it is worth a word.
        if others and (len(left) >= FEWEST or len({_field(fact) for fact in others}) == 1):
            return Shared(tuple(f"{fact} ({len(having[fact])})" for fact in (first, others[0])), either=True)
    return None


def _field(fact: str) -> str:
    """What a fact is about: `limit` of `limit=1.5` and of `limit per expert`."""
    return fact.partition("=")[0].partition(" ")[0]


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
    default = problem.activation.__class__().constants()
    for name, value in problem.activation.constants().items():
        yield f"{name} per expert" if isinstance(value, tuple) else f"{name}={value!r}"
        if value != default[name]:
            yield f"{name} other than {default[name]!r}"
        if value != default[name] and not isinstance(value, tuple):
            yield f"{name} for all experts, other than {default[name]!r}"
    for name in ("num_tokens", "skew", "padding", "seed"):
        yield f"{name}={getattr(case, name):g}"


Facts = Iterable[tuple[str, Has]]
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
