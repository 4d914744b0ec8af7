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
from moesaic.cli.reading import read_device
from moesaic.cli.standard_streams import occupy, prints_on_stderr
from moesaic.conformance import CHECKS, Case
from moesaic.conformance.asked import check_named
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.conformance.worker import LONGEST
from moesaic.errors import ParseError
from moesaic.machine import Machine
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY

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
    check: Annotated[str | None, typer.Option("--check", metavar="NAME", help="Try this promise only.")] = None,
    case: Annotated[str | None, typer.Option("--case", metavar="REPR", help="On this case only.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu or cuda.")] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="After which a call counts as hung, from 1.")] = 120.0,
    mutants: Annotated[bool, typer.Option("--mutants", help="Try the kit itself, on seeded defects.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Try every promise of the backend contract on everything that a backend declares. Exit code 1: one is broken."""
    occupy()
    if mutants:
        if backends or check is not None or case is not None or device is not None:
            raise ParseError("--mutants tries all checks on mutants of its own, on the CPU: leave out everything else")
        with interruptible():
            conform_mutants(quick=quick, as_json=as_json)
        return
    if not 1 <= limit <= LONGEST:  # NaN is refused too
        raise ParseError(f"--limit got {limit:g}, but it needs seconds from 1 to {LONGEST:g}")
    machine = Machine.current(None if device is None else read_device(device))
    with prints_on_stderr():  # a module prints what it likes while it is imported
        subjects = {name: tried_backend(name) for name in backends} if backends else _running(machine)
    checks = CHECKS if check is None else (check_named(check, "--check"),)
    cases = None if case is None else (_read_case(case, tuple(subjects.values())),)
    began = perf_counter()
    with interruptible():  # printing too: an impatient second Ctrl-C is not to cut the answer in two
        tried = Run(subjects, machine, checks, cases, quick, device).tried(limit)
        if as_json:
            print_json(document(tried, machine, perf_counter() - began, quick=quick))
        else:
            print_answer(tried, machine, with_cells=cases is None and check is None)
    if tried.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if any(report.faults for report in tried.reports):
        raise typer.Exit(ExitCode.NO)


def _running(machine: Machine) -> dict[str, Backend[Any]]:
    """The oracle and every backend of the package that runs on `machine`, whatever the problem, by name."""
    here = [b for b in (Reference(), *BACKENDS) if any(t.device == machine.device for t in b.capabilities.targets)]
    return {backend.name: backend for backend in here if not _missing(backend, machine)}


def _missing(backend: Backend[Any], machine: Machine) -> bool:
    from moesaic.conformance import base_case  # noqa: PLC0415

    problem = base_case(backend.capabilities).problem
    return any(reason.code in MACHINE_CODES for reason in backend.reasons_against(problem, machine))


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
