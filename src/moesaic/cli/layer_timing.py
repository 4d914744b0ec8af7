"""LayerTiming: one layer bound to every eligible backend, each checked against the oracle, then timed in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from rich.progress import Progress

from moesaic.backends import Reference
from moesaic.batches import Batch
from moesaic.cli.agreement import disagreement, is_allowed
from moesaic.cli.clocks import Clock, clock_for
from moesaic.cli.machine_bound import MachineBound, Work, measure_bound, work_of
from moesaic.cli.printing import error_console, print_note
from moesaic.cli.synthetic_layer import random_batch, random_weights
from moesaic.cli.times import Times
from moesaic.errors import MachineError
from moesaic.layer import Experts, bind
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.resolve import Resolution
from moesaic.weights import ExpertWeights

CHECKED_TOKENS = 16
"""Most tokens that are computed by the oracle as well."""

_WARM_UP = 3


@final
@dataclass(frozen=True)
class Row:
    """One backend on one number of tokens: how long its calls take, and the least that the machine allows."""

    shape: str
    tokens: int
    dtype: str
    backend: str
    times: Times
    bound_seconds: float
    rate: tuple[float, str]


@final
@dataclass(frozen=True)
class LayerTiming:
    """The bound layers that agree with the oracle, and the names of those `refused` because they do not."""

    problem: Problem
    machine: Machine
    device: torch.device
    weights: ExpertWeights
    layers: tuple[Experts, ...]
    refused: tuple[str, ...]
    clock: Clock
    bound: MachineBound

    @classmethod
    def prepare(cls, resolution: Resolution, device: torch.device, most_tokens: int) -> LayerTiming:
        """Draw weights, bind them to every eligible backend and check each; raises MachineError if memory is short."""
        problem, machine = resolution.problem, resolution.machine
        working = max((b.workspace(problem, most_tokens) for b in resolution.eligible), default=0)
        _check_memory(problem, machine, device, copies=1 + len(resolution.eligible), working=working)
        weights = random_weights(problem, device)
        bound_layers = [bind(problem, weights, machine=machine, backends=(b,)) for b in resolution.eligible]
        oracle = bind(replace(problem, graph_capture=False), weights, machine=machine, backends=(Reference(),))
        batch = random_batch(problem, min(most_tokens, CHECKED_TOKENS), device)
        errors = [disagreement(layer, oracle, batch) for layer in bound_layers]
        agreeing = tuple(layer for layer, e in zip(bound_layers, errors, strict=True) if is_allowed(e, problem.dtype))
        for layer, error in zip(bound_layers, errors, strict=True):
            if layer not in agreeing:
                print_note(
                    f"not timed: {layer.backend.name} is wrong: its error is {error:.2g} of the oracle's deviation"
                )
        refused = tuple(layer.backend.name for layer in bound_layers if layer not in agreeing)
        clock = clock_for(device)
        measured = measure_bound(clock, device, problem.dtype)
        return cls(problem, machine, device, weights, agreeing, refused, clock, measured)

    @property
    def dtype_name(self) -> str:
        """For instance `bfloat16`."""
        return str(self.problem.dtype).removeprefix("torch.")

    @property
    def shape(self) -> str:
        """For instance `E=8 K=2 H=4096 I=14336`."""
        p = self.problem
        return f"E={p.num_experts} K={p.top_k} H={p.hidden_size} I={p.intermediate_size}"

    def rows(self, counts: Sequence[int], *, repeats: int) -> Iterator[Row]:
        """One row for every number of tokens and every layer; a progress bar is drawn on a terminal."""
        console = error_console()
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for tokens in progress.track(counts, description="timing"):
                batch = random_batch(self.problem, tokens, self.device, seed=tokens)
                work = work_of(self.problem, self.weights, batch)
                for layer, times in zip(self.layers, self._times(batch, repeats), strict=True):
                    yield self._row(tokens, layer, times, work)

    @torch.no_grad()
    def _times(self, batch: Batch, repeats: int) -> list[Times]:
        calls = [self._call(layer, batch) for layer in self.layers]
        times: list[list[float]] = [[] for _ in calls]
        for turn in range(_WARM_UP + repeats):  # in turns, so that a change of clock rate meets all alike
            for call, taken in zip(calls, times, strict=True):
                seconds = self.clock.seconds(call)
                if turn >= _WARM_UP:
                    taken.append(seconds)
        return [Times.of(taken) for taken in times]

    def _call(self, layer: Experts, batch: Batch) -> Callable[[], object]:
        def call() -> object:
            return layer(batch)

        return self.clock.recorded(call) if layer.backend.capabilities.graph_capture else call

    def _row(self, tokens: int, layer: Experts, times: Times, work: Work) -> Row:
        seconds = times.median
        reads = self.bound.reads_dominate(work)
        rate = (work.num_bytes / seconds / 1e9, "GB/s") if reads else (work.flops / seconds / 1e12, "TFLOP/s")
        least = self.bound.seconds(work)
        return Row(self.shape, tokens, self.dtype_name, layer.backend.name, times, least, rate)


def _check_memory(problem: Problem, machine: Machine, device: torch.device, *, copies: int, working: int) -> None:
    weights = copies * problem.weight_bytes
    needed = weights + working
    free = min(machine.memory_bytes, _free_bytes(device))
    if needed > free:
        raise MachineError(
            f"{copies} copies of the weights (one drawn, one for each backend) are {weights / 2**30:.1f} GiB, a call "
            f"takes up to {working / 2**30:.1f} GiB, but {machine.name} has {free / 2**30:.1f} GiB free: shrink the "
            "layer with --experts, ask for fewer --tokens, or name one --backend"
        )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="ascii").splitlines() if info.exists() else []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
