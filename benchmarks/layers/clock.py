"""Microseconds of several calls in a row: one CUDA graph of them on a GPU, else as they run."""

from __future__ import annotations

import gc
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

Call = Callable[[], Tensor]
Run = Callable[[], None]


class Clock(ABC):
    """How calls become something that can be timed again and again."""

    @abstractmethod
    def captured(self, calls: Sequence[Call]) -> Run:
        """All calls in a row, compiled and run before."""

    @abstractmethod
    def microseconds(self, run: Run) -> float:
        """Of one run."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for the device. Raises what went wrong there."""

    @abstractmethod
    def release(self) -> None:
        """Give memory that nobody holds back to the device."""


@final
@dataclass(eq=False)
class GraphClock(Clock):
    """Replays of CUDA graphs between two events."""

    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def captured(self, calls: Sequence[Call]) -> Run:
        """Run twice before: on the stream of this thread, and where it is captured, for what libraries keep there."""
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            for call in calls:
                call()
            torch.cuda.synchronize()
            gc.disable()  # what it frees, another graph for instance, would end the capture
            try:
                graph.capture_begin()
                try:
                    for call in calls:
                        call()
                finally:  # else the device stays in capture, and whoever comes next fails too
                    graph.capture_end()
            finally:
                gc.enable()
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay

    def microseconds(self, run: Run) -> float:
        """Between events around the replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def release(self) -> None:
        """What the caching allocator holds."""
        torch.cuda.empty_cache()


@final
class HostClock(Clock):
    """Calls as they are, for a dry run without a GPU."""

    def captured(self, calls: Sequence[Call]) -> Run:
        """Nothing is captured."""

        def run() -> None:
            for call in calls:
                call()

        run()
        return run

    def microseconds(self, run: Run) -> float:
        """By the host's clock."""
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6

    def settle(self) -> None:
        """Calls have ended when they return."""

    def release(self) -> None:
        """Nothing is held."""


def in_rounds(clock: Clock, runs: Mapping[str, Run], calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of one of so many calls, sorted; each run once in every round, in another order in each.

    A card is limited by its power, so what ran before shows in a figure: all take turns.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            times[name].append(clock.microseconds(runs[name]) / calls)
    return {name: sorted(values) for name, values in times.items()}


def host_microseconds(clock: Clock, call: Call, calls: int = 100) -> float:
    """What one call costs the host without a graph: the time to issue it."""
    clock.settle()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = time.perf_counter() - start
    clock.settle()
    return spent / calls * 1e6
