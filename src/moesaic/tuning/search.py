"""fastest: the fastest of several choices for one number of rows, each checked before it is timed.

Nothing here knows a GPU or a clock: a `Bench` computes and times, and a `Budget` is told what time it is.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from moesaic.checks import finite_number
from moesaic.errors import TuningError
from moesaic.tuning.choices import Choice

SCREENED, ROUNDS = 5, 21
"""Calls of each choice that decide who comes to the last rounds, and last rounds."""

FINALISTS, NEAR = 4, 1.1
"""How many come to them beside the cost model's choice, and how much slower than the fastest they may be until then."""


class Bench(ABC):
    """One number of rows of one layer on one device."""

    @abstractmethod
    def fault(self, choice: Choice) -> str:
        """Why `choice` is not to be used: its rows are not those of the reference, or it cannot run. Empty if right."""

    @abstractmethod
    def timer(self, choice: Choice) -> Callable[[], float]:
        """What makes one call by `choice`, as it would be made in use, and returns its seconds.

        What the timer holds (a graph and its memory) is released with it.
        """


@final
@dataclass(frozen=True)
class Budget:
    """Seconds from `begun` on, by the clock `now`."""

    seconds: float
    now: Callable[[], float]
    begun: float

    @classmethod
    def of(cls, seconds: float, now: Callable[[], float]) -> Budget:
        """A budget that begins to run."""
        limit = finite_number("Budget", "seconds", seconds, TuningError)
        if limit <= 0:
            raise TuningError(f"Budget.seconds is {limit}, but it needs more than 0")
        return cls(limit, now, now())

    @property
    def left(self) -> float:
        """Seconds that are left; 0 or less if none are."""
        return self.seconds - (self.now() - self.begun)

    @property
    def spent(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0

    def share(self, parts: int) -> Budget:
        """The first of so many equal parts of what is left, from now on."""
        return Budget(self.left / parts, self.now, self.now())


@final
@dataclass(frozen=True)
class Fastest:
    """`choice` and its median seconds, those of the first of the candidates, and (choice, why) of those refused."""

    choice: Choice
    seconds: float
    default_seconds: float
    refused: tuple[tuple[Choice, str], ...]


def fastest(
    bench: Bench, candidates: Sequence[Choice], budget: Budget, advance: Callable[[], None] = lambda: None
) -> Fastest | None:
    """The fastest right choice; the first candidate, unless another is faster by more than the first one's spread.

    Each candidate is checked, then timed alone; the best, and the first, are timed again in turns, so that a change of
    clock rate or heat meets all alike. To win, a candidate's median has to be below the time that nine of ten calls of
    the first one exceed. None if the budget is spent before that is known. `advance` is called after each candidate.
    Raises TuningError if the first one, which runs without a table too, is wrong.
    """
    default = candidates[0]
    refused: list[tuple[Choice, str]] = []
    alone: dict[Choice, float] = {}
    for choice in candidates:
        if budget.spent:
            return None
        fault = bench.fault(choice)
        if fault and choice == default:
            raise TuningError(f"the cost model's own choice {choice!r} is not to be used here: {fault}")
        if fault:
            refused.append((choice, fault))
        else:
            timer = bench.timer(choice)
            alone[choice] = statistics.median(timer() for _ in range(SCREENED))
            del timer
        advance()
    timers = {choice: bench.timer(choice) for choice in _finalists(default, alone)}
    taken: dict[Choice, list[float]] = {choice: [] for choice in timers}
    for turn in range(ROUNDS):
        if budget.spent:
            return None
        for choice in sorted(timers, key=list(timers).index, reverse=turn % 2 == 1):
            taken[choice].append(timers[choice]())
    medians = {choice: statistics.median(times) for choice, times in taken.items()}
    best = min(medians, key=lambda choice: medians[choice])
    if medians[best] >= _tenth(taken[default]):
        best = default
    return Fastest(best, medians[best], medians[default], tuple(refused))


def _finalists(default: Choice, alone: dict[Choice, float]) -> list[Choice]:
    """The first candidate, and the fastest others."""
    least = min(alone.values())
    others = sorted((choice for choice in alone if choice != default), key=lambda choice: alone[choice])
    return [default, *(choice for choice in others[:FINALISTS] if alone[choice] <= NEAR * least)]


def _tenth(taken: list[float]) -> float:
    """The time that nine of ten calls exceed."""
    return statistics.quantiles(taken, n=10, method="inclusive")[0]
