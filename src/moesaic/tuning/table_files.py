"""TableFiles: where tables lie, which of them fits, and how one is written so that no reader ever sees a part of it."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from moesaic.errors import MoesaicError, TuningError
from moesaic.machine import user_cache
from moesaic.problem import Problem
from moesaic.tuning.directory_lock import alone
from moesaic.tuning.origin import Origin
from moesaic.tuning.table import Table
from moesaic.tuning.table_text import FORMAT, format_of, read_table, written

SHIPPED = Path(__file__).parent / "tables"
"""Tables that come with the package."""


@final
@dataclass(frozen=True)
class Found:
    """What there is for a problem: entries of every table that fits, and why each that was looked at does not.

    `files`: those that fit, the nearer first, whose entries win. `ignored`: (file, why) for tables of these sizes.
    """

    table: Table | None
    files: tuple[Path, ...]
    ignored: tuple[tuple[Path, str], ...]


@final
@dataclass(frozen=True)
class TableFiles:
    """Directories with tables, the nearest first."""

    directories: tuple[Path, ...]

    @classmethod
    def of(cls, own: str | None = None) -> TableFiles:
        """`own`, by default the user's directory, before the shipped one."""
        return cls((user_tables() if own is None else expanded(own), SHIPPED))

    def find(self, backend: str, problem: Problem, origin: Origin) -> Found:
        """The tables for `problem` there; what cannot be read, or is of something else, is ignored with its reason."""
        fitting: list[tuple[Path, Table]] = []
        ignored: list[tuple[Path, str]] = []
        for path in self._candidates(backend, problem, ignored):
            try:
                table = read_table(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, MoesaicError) as fault:
                ignored.append((path, f"cannot be read: {fault}"))
                continue
            against = "; ".join(table.differences(backend, problem, origin))
            if against:
                ignored.append((path, f"is of another {against}"))
            else:
                fitting.append((path, table))
        if not fitting:
            return Found(None, (), tuple(ignored))
        fitting.sort(key=lambda found: (self.directories.index(found[0].parent), *_distance(found[1].origin, origin)))
        merged = fitting[0][1]
        for _, table in fitting[1:]:
            merged = merged.over(table)
        return Found(merged, tuple(path for path, _ in fitting), tuple(ignored))

    def _candidates(self, backend: str, problem: Problem, ignored: list[tuple[Path, str]]) -> Iterator[Path]:
        """Files with a table of these sizes, each once; directories that cannot be listed become `ignored`."""
        seen: set[str] = set()
        for directory in self.directories:
            try:
                place, files = os.path.realpath(directory), sorted(directory.glob(f"{_sizes(backend, problem)}-*.json"))
            except (OSError, ValueError) as fault:  # a name that no directory can have
                ignored.append((directory, f"cannot be read: {fault}"))
                continue
            if place not in seen:
                yield from files
            seen.add(place)


def user_tables() -> Path:
    """Where `moesaic tune` writes for this user, and backends look."""
    return user_cache() / "moesaic" / "tables"


def expanded(directory: str) -> Path:
    """`directory` with a leading ~ or ~name replaced, where there is such a user."""
    return Path(os.path.expanduser(directory))  # noqa: PTH111 - never raises


def file_of(table: Table) -> str:
    """The file's name: sizes for people, and a digest of all that the table is of, so that no two share a file."""
    whole = replace(table, entries=())
    return f"{_sizes(table.backend, table.problem)}-{hashlib.sha256(repr(whole).encode()).hexdigest()[:16]}.json"


def write_table(directory: Path, table: Table) -> Path:
    """Write `table`, entries that are there for other numbers of rows kept; other tables are never touched.

    The file appears whole or not at all, under its name only when it is on the disk. Of two writers at a time the
    second waits, and keeps what the first wrote. Returns the file. Raises OSError where nothing can be written, or what
    is there cannot be read; TuningError where what is there is a table, but no such one (`kept`).
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_of(table)
    beside = directory / f".{path.stem}-{secrets.token_hex(8)}.unfinished"
    with alone(directory):
        text = written(kept(directory, table))
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)  # noqa: PTH105 - the name says that a file there is replaced, at once
        finally:
            beside.unlink(missing_ok=True)
    return path


def kept(directory: Path, table: Table) -> Table:
    """`table`, and what its file in `directory` has for other numbers of rows; a damaged file has nothing.

    Raises OSError if there is a file that cannot be read now, TuningError if it is in another written form, as of
    another moesaic, or of something else, as one that was renamed: nobody measured these to be overwritten.
    """
    path = directory / file_of(table)
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):  # nothing there, or nothing that anybody could use
        return table
    form = format_of(text)
    if form is not None and form != FORMAT:
        raise TuningError(
            f"{path} is a table in the format {form}, but this moesaic writes {FORMAT}: move it away, or give another "
            "directory"
        )
    try:
        before = read_table(text)
    except (ValueError, MoesaicError):
        return table
    if replace(before, entries=()) != replace(table, entries=()):
        against = "; ".join(before.differences(table.backend, table.problem, table.origin)) or "device of the same kind"
        raise TuningError(f"{path} has this table's name, but is of another {against}: move it away")
    return table.over(before)


def _distance(measured: Origin, wanted: Origin) -> tuple[bool, bool]:
    """Of tables that all fit, the one of this very device is nearest, then one of a device of its name."""
    return measured != wanted, measured.device != wanted.device


def _sizes(backend: str, problem: Problem) -> str:
    sizes = f"E{problem.num_experts}-K{problem.top_k}-H{problem.hidden_size}-I{problem.intermediate_size}"
    return f"{backend}-{sizes}"
