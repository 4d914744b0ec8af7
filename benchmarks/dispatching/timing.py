"""Microseconds of a call that all ranks make together: replays of a CUDA graph where that can be, else as it runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from moesaic.dispatch.collectives import Ranks

Work = Callable[[], Any]


def captured(work: Work) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `work`, compiled and warmed before, and what `work` returned inside."""
    work()
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads (NCCL's watchdog) may ask the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def of_all_ranks(values: Sequence[float], ranks: Ranks) -> list[list[float]]:
    """For each value what each rank has."""
    mine = torch.tensor(values, device=ranks.device, dtype=torch.float64)
    return ranks.all_gather(mine, "the times").T.tolist()


def timed(calls: Sequence[Work], ranks: Ranks, rounds: int, *, graph: bool) -> dict[str, Any]:
    """Of one call: all ranks start a round together, its figure is the slowest rank's; `of_ranks` are their medians."""
    every = in_turn({"calls": calls}, ranks, rounds, graph=graph)["calls"]
    slowest = sorted(map(max, every))
    return {
        "median": round(statistics.median(slowest), 2),
        "lowest": round(slowest[0], 2),
        "highest": round(slowest[-1], 2),
        "of_ranks": [round(statistics.median(own), 2) for own in zip(*every, strict=True)],
    }


def in_turn(
    works: Mapping[str, Sequence[Work]], ranks: Ranks, rounds: int, *, graph: bool
) -> dict[str, list[list[float]]]:
    """By name and round what each rank took for one call; every second round goes through the names backwards."""
    ready = {name: _ready(calls, graph=graph) for name, calls in works.items()}
    clock = _on_gpu if torch.device(ranks.device).type == "cuda" else _on_cpu
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name in list(works)[:: -1 if number % 2 else 1]:
            taken[name].append(clock(ready[name], ranks) / len(works[name]))
    return {name: of_all_ranks(own, ranks) for name, own in taken.items()}


def _ready(calls: Sequence[Work], *, graph: bool) -> Work:
    """All of them one after the other, in a graph or warmed."""

    def run() -> None:
        for work in calls:
            work()

    if graph:
        return captured(run)[0].replay
    run()
    return run


def _meet(ranks: Ranks) -> None:
    """Nobody goes on before all have come: the hosts over gloo, the devices over NCCL."""
    ranks.all_gather(torch.zeros(1, device=ranks.device), "the start of a round")


def _on_gpu(work: Work, ranks: Ranks) -> float:
    """The hosts meet, so that work is queued everywhere when the devices meet in front of the first event."""
    _meet(ranks)
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _meet(ranks)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def _on_cpu(work: Work, ranks: Ranks) -> float:
    _meet(ranks)
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6
