"""`moesaic conform`: run the conformance kit on backends, here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.progress import Progress

from moesaic.backends import BACKENDS, Backend, ReasonCode, Reference
from moesaic.cli.backend_choice import load_plugin
from moesaic.cli.conform_mutants import conform_mutants
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.machine import describe
from moesaic.cli.printing import error_console, print_json, print_line, print_table
from moesaic.cli.reading import read_device
from moesaic.cli.source_commit import source_commit
from moesaic.conformance import CHECKS, Case, Check, Report, Status, Worker
from moesaic.conformance import conform as run_kit
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.errors import BackendError, ParseError
from moesaic.machine import Machine
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY

MACHINE_CODES = (ReasonCode.DEVICE, ReasonCode.ARCHITECTURE, ReasonCode.FEATURE, ReasonCode.PACKAGE)
"""The reasons that are about this machine and not about a problem."""


def conform(
    backends: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BACKEND | ENTRY_POINT]...", help="By default all that run on this machine."),
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases, the same declared cells.")] = False,
    check: Annotated[str | None, typer.Option("--check", metavar="NAME", help="Try this promise only.")] = None,
    case: Annotated[str | None, typer.Option("--case", metavar="REPR", help="On this case only.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="After which a call counts as hung.", min=1)] = 120.0,
    mutants: Annotated[bool, typer.Option("--mutants", help="Try the kit itself, on seeded defects.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Try every promise of the backend contract on everything that a backend declares. Exit code 1: one is broken."""
    if mutants:
        if backends or check is not None or case is not None or device is not None:
            raise ParseError("--mutants tries all checks on mutants of its own, on the CPU: leave out everything else")
        conform_mutants(quick=quick, as_json=as_json)
        return
    machine = Machine.current(None if device is None else read_device(device))
    subjects = tuple(_named(name) for name in backends) if backends else tuple(_running(machine))
    checks = CHECKS if check is None else (_check_named(check),)
    cases = None if case is None else (_read_case(case, subjects),)
    began, reports = perf_counter(), []
    with Worker(limit) as worker, Progress(console=error_console(), transient=True, disable=not _draws()) as bar:
        for subject in subjects:
            task = bar.add_task(subject.name, total=None)

            def advance(done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            reports.append(
                run_kit(subject, machine, checks=checks, cases=cases, quick=quick, execution=worker, progress=advance)
            )
    if as_json:
        print_json(_document(reports, machine, perf_counter() - began, quick=quick))
    else:
        print_line(f"machine  {describe(machine)}")
        for report in reports:
            _print_report(report, with_cells=cases is None and check is None)
    if any(report.faults for report in reports):
        raise typer.Exit(ExitCode.NO)


def _running(machine: Machine) -> Iterator[Backend[Any]]:
    """The oracle and every backend of the package that runs on `machine`, whatever the problem."""
    for backend in (Reference(), *BACKENDS):
        can = backend.capabilities
        if any(t.device == machine.device for t in can.targets) and not _missing(backend, machine):
            yield backend


def _missing(backend: Backend[Any], machine: Machine) -> bool:
    from moesaic.conformance import base_case  # noqa: PLC0415

    problem = base_case(backend.capabilities).problem
    return any(reason.code in MACHINE_CODES for reason in backend.reasons_against(problem, machine))


def _named(name: str) -> Backend[Any]:
    for backend in (Reference(), *BACKENDS):
        if backend.name == name:
            return backend
    try:
        return load_plugin(name)
    except BackendError as fault:
        names = ", ".join(backend.name for backend in (Reference(), *BACKENDS))
        raise BackendError(f"{name!r} is not a backend of the package ({names}): {fault}") from fault


def _check_named(name: str) -> Check:
    for check in CHECKS:
        if check.name == name:
            return check
    raise ParseError(f"--check got {name!r}, but it needs one of {', '.join(check.name for check in CHECKS)}")


def _read_case(text: str, subjects: Sequence[Backend[Any]]) -> Case:
    own = [accepts.activation for subject in subjects for accepts in subject.capabilities.activations]
    stored = [
        f.__class__ for s in subjects for scheme in s.capabilities.schemes for f in (scheme.weights, scheme.inputs)
    ]
    kinds = {kind.__name__: kind for kind in (*own, *stored, UnlistedActivation, UnlistedFormat, *VOCABULARY, Case)}
    value = parse(text, kinds)
    if not isinstance(value, Case):
        raise ParseError(f"--case got {text[:60]!r}, but it needs the repr of a Case")
    return value


def _draws() -> bool:
    return sys.stderr.isatty()


def _document(reports: Sequence[Report], machine: Machine, seconds: float, *, quick: bool) -> dict[str, object]:
    return {
        "machine": repr(machine),
        "commit": source_commit(),
        "quick": quick,
        "seconds": round(seconds, 1),
        "conforms": all(report.conforms for report in reports),
        "backends": [report.as_document() for report in reports],
    }


def _print_report(report: Report, *, with_cells: bool) -> None:
    print_line()
    print_line(report.backend)
    if with_cells and report.cells:
        rows = [(str(r.cell), str(r.executed) if r.executed else "not executed", r.reason) for r in report.cells]
        print_table(("declared", "cases", "why not"), rows, numbers=("cases",))
    statuses = [status for status in Status if report.counts.get(status)]
    table = [
        (name, *(str(counted.get(status, "")) for status in statuses)) for name, counted in report.by_check().items()
    ]
    print_line()
    print_table(("check", *statuses), table, numbers=statuses)
    for fault in report.faults:
        print_line()
        print_line(f"{fault.status} {fault.check}: {fault.detail}")
        print_line(f"  {fault.command(report.backend)}")
    print_line()
    print_line(report.verdict)
