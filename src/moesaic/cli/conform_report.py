"""What `moesaic conform` answers: tables and grouped faults, or one JSON document."""

from __future__ import annotations

from collections.abc import Mapping

from moesaic.cli.conform_run import Tried
from moesaic.cli.machine import describe
from moesaic.cli.printing import print_line, print_table
from moesaic.cli.source_commit import source_commit
from moesaic.conformance import Report, Status
from moesaic.conformance.report import VALUES
from moesaic.machine import Machine

MOST_REASONS = 3
"""Reasons for skipped checks that are told in the text."""


def document(tried: Tried, machine: Machine, seconds: float, *, quick: bool) -> dict[str, object]:
    """Everything for JSON, all faults one by one and grouped."""
    return {
        "machine": repr(machine),
        "commit": source_commit(),
        "quick": quick,
        "seconds": round(seconds, 1),
        "interrupted": tried.interrupted,
        "not_begun": list(tried.not_begun),
        "conforms": not tried.interrupted and all(report.conforms for report in tried.reports),
        "backends": [report.as_document() for report in tried.reports],
    }


def print_answer(tried: Tried, machine: Machine, *, with_cells: bool) -> None:
    """The machine, every report, and the last word where the run was interrupted."""
    print_line(f"machine  {describe(machine)}")
    for report in tried.reports:
        print_report(report, with_cells=with_cells)
    if tried.interrupted:
        print_line()
        print_line(tried.verdict)


def print_report(report: Report, *, with_cells: bool) -> None:
    """One backend: its declared cells, outcomes by check, each group of faults with what repeats it, the verdict."""
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
    if report.skips:
        print_line()
        print_line(_skipped(report.skips))
    echoes = report.echoes
    for group in report.groups:
        if group.smallest.check in echoes:
            continue
        print_line()
        print_line(group.headline)
        print_line(f"  {group.smallest.detail}")
        print_line(f"  {report.repetition(group.smallest)}")
    if echoes:
        print_line()
        print_line(f"also fail, probably for the same reason as {VALUES} (--json has their text): {', '.join(echoes)}")
    print_line()
    print_line(report.verdict)


def _skipped(skips: Mapping[str, int]) -> str:
    """For instance `skipped 812: 430 many experts: ...; 92 no slot is inactive; 290 for 7 other reasons (--json)`."""
    told = [f"{count} {reason}" for reason, count in list(skips.items())[:MOST_REASONS]]
    others = list(skips.values())[MOST_REASONS:]
    more = [f"{sum(others)} for {len(others)} other reasons (--json)"] if others else []
    return f"skipped {sum(skips.values())}: {'; '.join((*told, *more))}"
