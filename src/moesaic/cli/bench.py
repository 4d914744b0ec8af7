"""`moesaic bench`: how fast each backend runs one layer here, against what the machine allows."""

from __future__ import annotations

from typing import Annotated

import typer

from moesaic.cli.backend_choice import all_backends, backend_named, is_oracle
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.layer_timing import LayerTiming, Row
from moesaic.cli.machine import describe
from moesaic.cli.printing import print_json, print_line, print_note, print_table
from moesaic.cli.problem_options import AskedProblem, takes_problem
from moesaic.cli.reading import declared_kinds, read_counts, read_device
from moesaic.cli.source_commit import source_commit
from moesaic.machine import Machine
from moesaic.resolve import Resolution, resolve


@takes_problem
def bench(
    asked: AskedProblem,
    *,
    tokens: Annotated[str, typer.Option(metavar="T,T,...", help="Numbers of tokens.")] = "1,16,256",
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N.")] = None,
    backend: Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Time this one only.")] = None,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", metavar="NAME", help="Load this backend of an installed package.")
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Calls timed for each row.", min=1)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Time one layer with random weights. Exit code 1: no backend serves it, or one computes something else."""
    counts = read_counts(tokens, "--tokens")
    machine = Machine.current(None if device is None else read_device(device))
    there = all_backends(plugin or ())
    wanted = there if backend is None else (backend_named(backend, there),)
    candidates = tuple(b for b in wanted if backend is not None or not is_oracle(b))
    resolution = resolve(asked.read(more=declared_kinds(there)), machine, candidates)
    resolution.backend  # noqa: B018  (raises NoBackendError if there is none)
    timing = LayerTiming.prepare(resolution, read_device(device or machine.device), max(counts))
    _note_declined(resolution)  # after what may be refused: an error is one line
    rows = tuple(timing.rows(counts, repeats=repeats))
    if as_json:
        print_json({"machine": repr(machine), "commit": source_commit(), "rows": [_document(row) for row in rows]})
    else:
        _print_header(timing)
        columns = ("tokens", "backend", "microseconds", "p10 to p90", "bound", "share", "rate")
        print_table(columns, map(_cells, rows), numbers=tuple(column for column in columns if column != "backend"))
    if timing.refused:
        raise typer.Exit(ExitCode.NO)


def _note_declined(resolution: Resolution) -> None:
    for verdict in resolution.verdicts:
        if not verdict.eligible:
            print_note(f"not timed: {verdict.backend.name}: {'; '.join(map(str, verdict.reasons))}")


def _print_header(timing: LayerTiming) -> None:
    print_line(f"problem  {timing.problem!r}")
    print_line(f"machine  {describe(timing.machine)}")
    reads, products = timing.bound.bytes_per_second, timing.bound.flops_per_second
    print_line(f"measured reads {reads / 1e9:.1f} GB/s, products {products / 1e12:.3f} TFLOP/s in {timing.dtype_name}")
    print_line(f"commit   {source_commit() or 'not in a checkout'}")
    print_line()


def _document(row: Row) -> dict[str, object]:
    return {
        "shape": row.shape,
        "tokens": row.tokens,
        "dtype": row.dtype,
        "backend": row.backend,
        "microseconds": row.times.median * 1e6,
        "p10_microseconds": row.times.p10 * 1e6,
        "p90_microseconds": row.times.p90 * 1e6,
        "bound_microseconds": row.bound_seconds * 1e6,
    }


def _cells(row: Row) -> tuple[str, ...]:
    share, (rate, unit) = row.bound_seconds / row.times.median, row.rate
    spread = f"{row.times.p10 * 1e6:.1f} to {row.times.p90 * 1e6:.1f}"
    times = (f"{row.times.median * 1e6:.1f}", spread, f"{row.bound_seconds * 1e6:.1f}")
    return (str(row.tokens), row.backend, *times, f"{share:.0%}", f"{rate:.3g} {unit}")
