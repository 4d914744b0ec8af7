"""The command line that both programs share, and the run it asks for."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from layers.cells import Cell, Family, dealt, ordered
from layers.clock import Clock, GraphClock, HostClock
from layers.conditions import Conditions
from layers.course import Course
from layers.floor import BANDWIDTH, FLOPS
from layers.report import Report, line
from layers.shapes import SHAPES, TOKENS
from layers.traffic import Traffic

from moesaic import Machine
from moesaic.cli.source_commit import source_commit

OPTIONS = ("skew", "hot", "rounds", "device")
"""That a figure depends on."""


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads some of `known`, with commas between them."""

    def read(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return text.split(",")

    return read


def numbers(text: str) -> list[int]:
    """Whole numbers of at least one."""
    found = [int(number) for number in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{min(found)} tokens: there must be at least one")
    return found


def part(text: str) -> tuple[int, int]:
    """`i/n` with i from 0 to n - 1."""
    index, count = map(int, text.split("/"))
    if not 0 <= index < count:
        raise argparse.ArgumentTypeError(f"part {index} of {count}: parts go from 0 to {count - 1}")
    return index, count


def options(parser: argparse.ArgumentParser, peers: Collection[str]) -> None:
    """Those that both programs have."""
    add = parser.add_argument
    add("--tokens", type=numbers, default=list(TOKENS), help="in the order in which they are measured (1 to 16384)")
    add("--tokens-first", action="store_true", help="all layers of a number of tokens before the next number")
    add(
        "--peers", type=some_of([*peers, "none"]), default=list(peers), help="with commas, or none (all that are there)"
    )
    add("--rounds", type=int, default=9)
    add("--skew", type=float, default=0.0, help="exponent of Zipf's law, 0 for experts that are equally popular (0)")
    add("--hot", type=float, default=0.0, help="share of tokens that have one expert in common (0)")
    add("--budget", type=float, default=float("inf"), help="seconds after which no cell is begun")
    add("--resume", action="store_true", help="keep the rows of --out and leave out their cells")
    add(
        "--warm", type=part, help="i/n: call everybody once in the i-th of n parts of the cells, to compile; no figures"
    )
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run")
    add("--commit", help="what to write as the commit where there is no checkout")
    add("--out", type=Path)


def read(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; `traffic` is made of it."""
    given = parser.parse_args(arguments)
    try:
        given.traffic = Traffic(skew=given.skew, hot=given.hot)
    except ValueError as fault:
        parser.error(str(fault))
    return given


def own_version() -> str:
    """Of the installed package; a checkout on the Python path has none."""
    try:
        return metadata.version("moesaic")
    except metadata.PackageNotFoundError:
        return "not installed"


def document_head(given: argparse.Namespace, cells: Sequence[Cell]) -> dict[str, Any]:
    """What ran where, and what was asked for."""
    machine = Machine.current(given.device)
    versions = {name: version for name, version in machine.packages if name != "numba"}
    return {
        "commit": given.commit or source_commit(),
        "machine": repr(machine),
        "versions": {"moesaic": own_version(), **versions},
        **{name: getattr(given, name) for name in OPTIONS},
        "floor": {"flops_a_second": FLOPS, "bytes_a_second": BANDWIDTH},
        "shapes": {cell.shape: vars(SHAPES[cell.shape]) for cell in cells},
    }


def run(family: Family, layers: Sequence[tuple[str, str]], given: argparse.Namespace, start: float) -> int:
    """Measure (scheme, shape) pairs, print and write. The exit status: 1 if moesaic failed or was wrong."""
    clock: Clock = GraphClock() if given.device == "cuda" else HostClock()
    conditions = Conditions(
        device=given.device,
        clock=clock,
        traffic=given.traffic,
        rounds=given.rounds,
        peers=given.peers,
        budget=given.budget,
        start=start,
    )
    course = Course(family, conditions)
    cells = ordered(layers, given.tokens, tokens_first=given.tokens_first)
    with torch.no_grad():
        return _warm(course, cells, given.warm) if given.warm else _measure(course, cells, given)


def _warm(course: Course, cells: Sequence[Cell], wanted: tuple[int, int]) -> int:
    for text in course.warm(dealt(cells, *wanted)):
        print(text, file=sys.stderr, flush=True)
    return 0


def _measure(course: Course, cells: Sequence[Cell], given: argparse.Namespace) -> int:
    report = Report(document_head(given, cells), given.out)
    if given.resume:
        try:
            report.resume()
        except ValueError as fault:
            raise SystemExit(str(fault)) from None
    left = [cell for cell in cells if not report.has(**vars(cell))]
    for entries in course.run(left):
        for kind, row in entries:
            report.found[kind].append(row)
            if kind == "not_run":
                print("not run:", *(f"{name}={value}" for name, value in row.items()), flush=True)
        rows = [row for kind, row in entries if kind == "rows"]
        if rows:
            print(line(rows), f"[{time.monotonic() - course.conditions.start:.0f} s]", flush=True)
        report.head["versions"] |= course.versions
        report.head["seconds"] = round(time.monotonic() - course.conditions.start, 1)
        report.write()
    for fault in course.faults:
        print("moesaic:", fault, file=sys.stderr)
    return 1 if course.faults else 0
