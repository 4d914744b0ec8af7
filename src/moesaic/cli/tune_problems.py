"""What `moesaic tune` is asked to measure: problems by name, each with the backend that runs it here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from moesaic.backends import HopperGrouped, TritonGrouped
from moesaic.backends.tunable import Tunable
from moesaic.cli.machine import describe
from moesaic.cli.problem_options import AskedProblem
from moesaic.errors import MachineError, ParseError
from moesaic.layouts import BatchedExperts, GroupedContiguous
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.resolve import resolve
from moesaic.tuning.search import FINALISTS
from moesaic.tuning.table_files import expanded

TUNABLE: tuple[Tunable, ...] = (HopperGrouped(), TritonGrouped())
"""The backends that choose by size, best first."""


def asked_problems(asked: AskedProblem, models: Sequence[str]) -> Iterator[tuple[str, Problem]]:
    """Every problem with what it is called; fields set by options hold for each model."""
    if models and (asked.model is not None or asked.problem is not None):
        raise ParseError("models are given by name, and --model or --problem too: give one or the other")
    if not models:
        yield asked.model or "the layer", asked.read()
    for name in dict.fromkeys(models):
        yield name, replace(asked, model=name).read()


def check_can_measure(machine: Machine) -> None:
    """Raise MachineError unless `machine` is a CUDA device."""
    if machine.device != "cuda":
        raise MachineError(
            f"tune measures kernels of a CUDA device, but this is {describe(machine)}: run it where the layer is to "
            "run; without a table the cost model chooses"
        )


def backend_for(problem: Problem, machine: Machine) -> Tunable:
    """The backend that chooses by size and runs `problem` here; raises NoBackendError with every reason."""
    verdicts = zip(TUNABLE, resolve(problem, machine, TUNABLE).verdicts, strict=True)
    eligible = [backend for backend, verdict in verdicts if verdict.eligible]
    if not eligible:
        resolve(problem, machine, TUNABLE).backend  # noqa: B018  (raises)
    return eligible[0]


def check_memory(backend: Tunable, problem: Problem, device: torch.device, most_tokens: int) -> None:
    """Raise MachineError if the weights and the graphs that are timed in turns do not fit."""
    rows = most_rows(problem, most_tokens)
    batch = rows * problem.hidden_size * problem.dtype.itemsize
    calls = (FINALISTS + 2) * backend.workspace(problem, rows) + batch
    needed, free = problem.weight_bytes + calls, torch.cuda.mem_get_info(device)[0]
    if needed > free:
        raise MachineError(
            f"the weights are {problem.weight_bytes / 2**30:.1f} GiB and the calls that are timed in turns take "
            f"{calls / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free: ask for fewer --tokens, or for the experts "
            "of one rank with --experts"
        )


def most_rows(problem: Problem, num_tokens: int) -> int:
    """The most rows that the layer sees of so many tokens, however they are routed; their padding is counted."""
    match problem.layout:
        case BatchedExperts():  # an expert that all tokens choose gives every expert's slab its height
            return problem.num_experts * num_tokens
        case GroupedContiguous(alignment=alignment):
            return num_tokens * problem.top_k + problem.num_experts * (alignment - 1)
        case _:
            return num_tokens if problem.layout.has_routing else num_tokens * problem.top_k


def lacks_memory(fault: torch.OutOfMemoryError) -> MachineError:
    """What to raise where the memory does not suffice after all: for the oracle, or for the cost model's choice."""
    return MachineError(
        f"the device's memory does not suffice: {fault}; what was complete is kept: ask for fewer --tokens, or for the "
        "experts of one rank with --experts"
    )


def writable(directory: Path) -> Path:
    """`directory`, made if it is not there; raises ParseError if nothing can be written there. `~` is the home."""
    directory = expanded(str(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ParseError(f"tables are to be written to {str(directory)!r}, but: {fault.strerror}; give --out") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ParseError(f"tables are to be written to {str(directory)!r}, but nobody lets us: give another --out")
    return directory
