"""`moesaic conform`: run the conformance kit on backends, here."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Annotated, Any

import typer

from moesaic.backends import BACKENDS, Backend, ReasonCode, Reference
from moesaic.cli.backend_choice import tried_backend
from moesaic.cli.conform_mutants import conform_mutants
from moesaic.cli.conform_report import document, print_answer
from moesaic.cli.conform_run import Run
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.interruption import interruptible
from moesaic.cli.printing import print_json
from moesaic.cli.reading import declared_kinds, read_as, read_device
from moesaic.cli.standard_streams import occupy, prints_on_stderr
from moesaic.conformance import CHECKS, Case
from moesaic.conformance.asked import check_named
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.conformance.worker import LONGEST
from moesaic.errors import ParseError
from moesaic.machine import Machine

MACHINE_CODES = (ReasonCode.DEVICE, ReasonCode.ARCHITECTURE, ReasonCode.FEATURE, ReasonCode.PACKAGE)
"""The reasons that are about this machine and not about a problem."""


def conform(
    backends: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BACKEND | ENTRY_POINT | MODULE:CLASS]...",
            help="A backend of the package, one that an installed package offers in the entry-point group "
            "moesaic.backends, or a class of a module that can be imported from here. By default all that run here.",
        ),
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases, the same declared cells.")] = False,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="NAME", help="Try this promise only; may be repeated.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="REPR", help="On this case only; may be repeated.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="After which a call counts as hung, from 1.")] = 120.0,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Try the kit itself, on seeded defects: five minutes with --quick.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Try every promise of the backend contract on everything that a backend declares.

    Exit code 1: one is broken. 2: nothing could be tried, for instance because the backend declines the case.
    """
    occupy()
    if mutants:
        if backends or check or case or device is not None:
            raise ParseError("--mutants tries all checks on mutants of its own, on the CPU: leave out everything else")
        with interruptible():
            conform_mutants(quick=quick, as_json=as_json)
        return
    if not 1 <= limit <= LONGEST:  # NaN is refused too
        raise ParseError(f"--limit got {limit:g}, but it needs seconds from 1 to {LONGEST:g}")
    machine = Machine.current(None if device is None else read_device(device))
    with prints_on_stderr():  # a module prints what it likes while it is imported
        subjects = {name: tried_backend(name) for name in backends} if backends else _running(machine)
    checks = tuple(dict.fromkeys(check_named(name, "--check") for name in check)) if check else CHECKS
    cases = tuple(dict.fromkeys(_read_case(text, tuple(subjects.values())) for text in case)) if case else None
    began = perf_counter()
    with interruptible():  # printing too: an impatient second Ctrl-C is not to cut the answer in two
        tried = Run(subjects, machine, checks, cases, quick, device).tried(limit)
        if as_json:
            print_json(document(tried, machine, perf_counter() - began, quick=quick))
        else:
            print_answer(tried, machine, with_cells=cases is None and not check)
    if tried.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if any(report.faults for report in tried.reports):
        raise typer.Exit(ExitCode.NO)
    idle = [report for report in tried.reports if report.nothing_tried]
    if idle and (backends or len(idle) == len(tried.reports)):  # of those that were not named some may decline
        raise typer.Exit(ExitCode.BAD_INPUT)


def _running(machine: Machine) -> dict[str, Backend[Any]]:
    """The oracle and every backend of the package that runs on `machine`, whatever the problem, by name."""
    here = [b for b in (Reference(), *BACKENDS) if any(t.device == machine.device for t in b.capabilities.targets)]
    return {backend.name: backend for backend in here if not _missing(backend, machine)}


def _missing(backend: Backend[Any], machine: Machine) -> bool:
    from moesaic.conformance import base_case  # noqa: PLC0415

    problem = base_case(backend.capabilities).problem
    return any(reason.code in MACHINE_CODES for reason in backend.reasons_against(problem, machine))


def _read_case(text: str, subjects: Sequence[Backend[Any]]) -> Case:
    return read_as(Case, text, "--case", (*declared_kinds(subjects), UnlistedActivation, UnlistedFormat, Case))
