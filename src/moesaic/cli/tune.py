"""`moesaic tune`: measure which choice is fastest for each number of tokens here, and keep it in a table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import Progress

from moesaic.backends.tunable import Tunable
from moesaic.cli.clocks import clock_for
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.interruption import interruptible
from moesaic.cli.printing import error_console, print_json, print_note, print_table
from moesaic.cli.problem_options import AskedProblem, takes_problem
from moesaic.cli.reading import read_counts, read_device
from moesaic.cli.source_commit import source_commit
from moesaic.cli.synthetic_layer import random_weights
from moesaic.cli.tune_bench import Layer
from moesaic.cli.tune_layer import Means, tune_layer
from moesaic.cli.tune_problems import (
    asked_problems,
    backend_for,
    check_can_measure,
    check_memory,
    lacks_memory,
    writable,
)
from moesaic.cli.tune_report import COLUMNS, TunedLayer, notes
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning import Budget
from moesaic.tuning.table_files import user_tables

TOKENS = tuple(2**n for n in range(15))


@takes_problem
def tune(
    asked: AskedProblem,
    *,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL...", help="Known models or checkpoints; else one problem.")
    ] = None,
    tokens: Annotated[str, typer.Option(metavar="T,T,...", help="Numbers of tokens.")] = ",".join(map(str, TOKENS)),
    budget: Annotated[float, typer.Option(metavar="SECONDS", help="For everything together.")] = 900.0,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cuda or cuda:N.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where tables are, instead of the user's cache.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what a table has already, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure forms and tiles of a layer on this GPU; what computes something else never wins."""
    counts = tuple(dict.fromkeys(read_counts(tokens, "--tokens")))
    problems = dict(asked_problems(asked, models or ()))
    whole = Budget.of(budget, time.monotonic)
    machine = Machine.current(None if device is None else read_device(device))
    check_can_measure(machine)
    backends = {name: backend_for(problem, machine) for name, problem in problems.items()}
    where = read_device(device or machine.device)
    for name, problem in problems.items():
        check_memory(backends[name], problem, where, max(counts))
    means = Means(where, clock_for(where), writable(user_tables() if out is None else out), again)
    found: list[TunedLayer] = []
    try:
        with interruptible():
            measure(problems, backends, machine, counts, means, whole, found)
    except KeyboardInterrupt:
        print_note("moesaic: interrupted; what is complete is kept")
        _print(found, machine, as_json=as_json)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except torch.OutOfMemoryError as fault:
        raise lacks_memory(fault) from fault
    _print(found, machine, as_json=as_json)


def measure(
    problems: Mapping[str, Problem],
    backends: Mapping[str, Tunable],
    machine: Machine,
    counts: Sequence[int],
    means: Means,
    whole: Budget,
    found: list[TunedLayer],
) -> None:
    """Tune each problem in its share of what is left of the budget, with a bar on a terminal; `found` grows."""
    console = error_console()
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    # Events and graphs are of the current device, whichever one the weights lie on.
    with bar, torch.cuda.device(means.device) if means.device.type == "cuda" else nullcontext():
        task = bar.add_task("tuning", total=len(problems) * len(counts))
        for number, (name, problem) in enumerate(problems.items()):

            def told(count: int, share: float, name: str = name) -> None:
                bar.update(task, description=f"{name}, {count} tokens", advance=share)

            found.append(TunedLayer(name, backends[name].name, problem))
            layer = Layer(backends[name], problem, machine, random_weights(problem, means.device))
            for size in tune_layer(layer, counts, means, whole.share(len(problems) - number), told):
                found[-1].sizes.append(size)
            del layer  # before the next one's weights are drawn


def _print(found: Sequence[TunedLayer], machine: Machine, *, as_json: bool) -> None:
    if as_json:
        layers = [layer.as_document() for layer in found]
        print_json({"machine": repr(machine), "commit": source_commit(), "layers": layers})
        return
    print_table(COLUMNS, (row for layer in found for row in layer.rows()), numbers=COLUMNS[3:6])
    for note in notes(found):
        print_note(note)
