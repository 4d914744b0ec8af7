"""How answers leave: text and tables or one JSON document on stdout, everything else on stderr.

Rich decides about colours (none when NO_COLOR is set or the stream is no terminal). Without a terminal nothing is
wrapped, so that a line of a table stays a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

UNWRAPPED = 10_000
"""Columns of a stream that is no terminal."""


def print_json(document: object) -> None:
    """One JSON document on stdout."""
    print_text(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_line(text: str = "") -> None:
    """One line on stdout, as it is."""
    _console(sys.stdout).print(escape(text), soft_wrap=True, highlight=False)


def print_text(text: str) -> None:
    """Text of several lines on stdout, byte for byte."""
    sys.stdout.write(text)
    sys.stdout.flush()  # a closed pipe is noticed here, where it is expected, and not when the process ends


def print_note(text: str) -> None:
    """One line on stderr, as it is; nowhere if that is closed."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  (what Python makes of `2>&-`)
        return
    _console(sys.stderr).print(escape(text), soft_wrap=True, highlight=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """A table on stdout; the columns called `numbers` are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(escape(column), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    _console(sys.stdout).print(table, highlight=False)


def error_console() -> Console:
    """Where progress bars are drawn, which appear only on a terminal."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    options: dict[str, Any] = {} if stream.isatty() else {"width": UNWRAPPED}
    return Console(file=stream, emoji=False, **options)
