"""What `moesaic conform` answers: tables and grouped faults, or one JSON document."""

from __future__ import annotations

from moesaic.cli.conform_run import Tried
from moesaic.cli.machine import describe
from moesaic.cli.printing import print_line, print_table
from moesaic.cli.source_commit import source_commit
from moesaic.conformance import Report, Status
from moesaic.machine import Machine


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
    for group in report.groups:
        print_line()
        print_line(group.headline)
        print_line(f"  {group.smallest.detail}")
        print_line(f"  {report.repetition(group.smallest)}")
    print_line()
    print_line(report.verdict)
