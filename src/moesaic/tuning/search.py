"""fastest: the fastest of several choices for one number of rows, each checked before it is timed.

Nothing here knows a GPU or a clock: a `Bench` computes and times, and a `Budget` is told what time it is. Only what all
of torch's devices raise is known: `torch.OutOfMemoryError`, by which a choice loses.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, final

import torch

from moesaic.errors import TuningError
from moesaic.tuning.budget import Budget
from moesaic.tuning.choices import Choice

SCREENED, ROUNDS = 5, 21
"""Calls of each choice that decide who comes to the last rounds, and last rounds."""

FINALISTS, NEAR = 4, 1.1
"""How many come to them beside the cost model's choice, and how much slower than the fastest they may be until then."""

Found = TypeVar("Found")


class Bench(ABC):
    """One number of rows of one layer on one device. Any of it may raise torch.OutOfMemoryError."""

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
    Raises TuningError if there is no candidate, or if the first one, which runs without a table too, is wrong;
    torch.OutOfMemoryError if the memory does not suffice for the first one: any other is refused for that.
    """
    if not candidates:
        raise TuningError("there is no candidate to be measured: give the cost model's own choice first")
    default = candidates[0]
    refused: dict[Choice, str] = {}
    alone: dict[Choice, float] = {}
    for choice in candidates:
        if budget.spent:
            return None
        found = _if_it_fits(partial(_screened, bench, choice), necessary=choice == default)
        if isinstance(found, str):
            refused[choice] = found
        else:
            alone[choice] = found
        if default in refused:
            raise TuningError(f"the cost model's own choice {choice!r} is not to be used here: {found}")
        advance()
    taken = _in_turns(bench, _finalists(default, alone), budget, refused)
    if taken is None:
        return None
    medians = {choice: statistics.median(times) for choice, times in taken.items()}
    best = min(medians, key=lambda choice: medians[choice])
    if medians[best] >= _tenth(taken[default]):
        best = default
    return Fastest(best, medians[best], medians[default], tuple(refused.items()))


def _in_turns(
    bench: Bench, finalists: Sequence[Choice], budget: Budget, refused: dict[Choice, str]
) -> dict[Choice, list[float]] | None:
    """Seconds of each of `finalists` in each round; what does not fit beside those before it becomes `refused`."""
    timers: dict[Choice, Callable[[], float]] = {}
    for choice in finalists:  # the fastest first, since each holds a graph and its memory
        timer = _if_it_fits(partial(bench.timer, choice), necessary=choice == finalists[0])
        if isinstance(timer, str):
            refused[choice] = timer
        else:
            timers[choice] = timer
    taken: dict[Choice, list[float]] = {choice: [] for choice in timers}
    for turn in range(ROUNDS):
        if budget.spent:
            return None
        for choice in sorted(timers, key=list(timers).index, reverse=turn % 2 == 1):
            taken[choice].append(timers[choice]())
    return taken


def _screened(bench: Bench, choice: Choice) -> float | str:
    """The median of some calls, after which the timer and its graph are gone; or why `choice` is not to be used."""
    fault = bench.fault(choice)
    if fault:
        return fault
    timer = bench.timer(choice)
    return statistics.median(timer() for _ in range(SCREENED))


def _if_it_fits(call: Callable[[], Found], *, necessary: bool) -> Found | str:
    """What `call` returns, or how the memory did not suffice, which is raised if that was `necessary`."""
    try:
        return call()
    except torch.OutOfMemoryError as lack:
        if necessary:
            raise
        return f"it does not run: {' '.join(str(lack).split())}"


def _finalists(default: Choice, alone: dict[Choice, float]) -> list[Choice]:
    """The first candidate, and the fastest others."""
    least = min(alone.values())
    others = sorted((choice for choice in alone if choice != default), key=lambda choice: alone[choice])
    return [default, *(choice for choice in others[:FINALISTS] if alone[choice] <= NEAR * least)]


def _tenth(taken: list[float]) -> float:
    """The time that nine of ten calls exceed."""
    return statistics.quantiles(taken, n=10, method="inclusive")[0]
