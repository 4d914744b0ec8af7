"""`moesaic explain`: which backend runs a problem on a machine, and why not each of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from moesaic.cli.backend_choice import all_backends, backend_named, is_oracle
from moesaic.cli.exit_codes import ExitCode
from moesaic.cli.machine import describe
from moesaic.cli.printing import print_json, print_line, print_table
from moesaic.cli.problem_options import AskedProblem, takes_problem
from moesaic.cli.reading import declared_kinds, read_machine
from moesaic.cli.tuned_table import table_document, table_lines
from moesaic.resolve import Resolution, Verdict, resolve


@takes_problem
def explain(
    asked: AskedProblem,
    *,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="A known machine, a device here, or a repr.")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Ask about this one only.")] = None,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", metavar="NAME", help="Load this backend of an installed package.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Let a checkpoint's own code run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say which backend runs a problem, and every reason against each of the others. Exit code 1: none does."""
    there = all_backends(plugin or ())
    more = declared_kinds(there)
    if backend is not None:
        there = (backend_named(backend, there),)
    resolution = resolve(asked.read(trust_remote_code=trust_remote_code, more=more), read_machine(machine), there)
    chosen = chosen_name(resolution, named=backend is not None)
    if as_json:
        print_json(as_document(resolution, chosen))
    else:
        print_line(f"problem  {resolution.problem!r}")
        print_line(f"machine  {describe(resolution.machine)}")
        for line in table_lines(resolution, chosen):
            print_line(f"table    {line}")
        print_line()
        print_table(("backend", "verdict", "why"), verdict_rows(resolution, chosen))
        print_line()
        print_line("no backend serves this problem here" if chosen is None else f"{chosen} runs it")
    if chosen is None:
        raise typer.Exit(ExitCode.NO)


def chosen_name(resolution: Resolution, *, named: bool) -> str | None:
    """The name of the backend that runs: the first eligible one, the oracle only if it was asked for by name."""
    for candidate in resolution.eligible:
        if named or not is_oracle(candidate):
            return candidate.name
    return None


def verdict_rows(resolution: Resolution, chosen: str | None) -> Iterator[tuple[str, str, str]]:
    """Name, verdict, and every reason against a backend or why it was chosen or was not."""
    for verdict in resolution.verdicts:
        against = "\n".join(map(str, verdict.reasons))
        yield verdict.backend.name, _word(verdict, chosen), against or _why_eligible(resolution, verdict, chosen)


def why_chosen(resolution: Resolution, chosen: str | None) -> str:
    """Why the backend called `chosen` runs, for instance over which others; empty if none does."""
    if chosen is None:
        return ""
    names = [verdict.backend.name for verdict in resolution.verdicts]
    if len(names) == 1:
        return "the only one asked about, and nothing stands against it"
    others = [b.name for b in resolution.eligible if b.name != chosen and not is_oracle(b)]
    over = f", preferred to {', '.join(others)}" if others else ", the only one that serves this"
    return f"nothing stands against it{over}"


def as_document(resolution: Resolution, chosen: str | None) -> dict[str, object]:
    """The answer for JSON; `problem` and `machine` are reprs, which the options take."""
    return {
        "problem": repr(resolution.problem),
        "machine": repr(resolution.machine),
        "backend": chosen,
        "why": why_chosen(resolution, chosen),
        "verdicts": [
            {
                "backend": verdict.backend.name,
                "eligible": verdict.eligible,
                "reasons": [{"code": str(r.code), "wanted": r.wanted, "got": r.got} for r in verdict.reasons],
            }
            for verdict in resolution.verdicts
        ],
        "table": table_document(resolution, chosen),
    }


def _why_eligible(resolution: Resolution, verdict: Verdict, chosen: str | None) -> str:
    if verdict.backend.name == chosen:
        return why_chosen(resolution, chosen)
    return "" if is_oracle(verdict.backend) else f"serves this too, but {chosen} is preferred"


def _word(verdict: Verdict, chosen: str | None) -> str:
    if not verdict.eligible:
        return "declined"
    if verdict.backend.name == chosen:
        return "runs"
    return "oracle, runs only when named" if is_oracle(verdict.backend) else "eligible"
