"""Which tuned table the backend that runs would use, or why none, as `moesaic explain` says it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moesaic.backends import Backend
from moesaic.backends.tunable import Tunable
from moesaic.resolve import Resolution
from moesaic.tuning import Found, Table, Tuned
from moesaic.tuning.table_files import user_tables


def table_lines(resolution: Resolution, chosen: str | None) -> Iterator[str]:
    """For people; nothing if the backend that runs has no tables."""
    backend = _tunable(resolution, chosen)
    if backend is None:
        return
    if not isinstance(backend.choosing, Tuned):
        yield f"none: {backend.name} chooses by {backend.choosing!r}"
        return
    found = _found(backend, backend.choosing, resolution)
    if found.table is not None:
        yield f"{', '.join(map(str, found.files))}: {_extent(found.table)}"
    else:
        yield f"none, so the cost model chooses: {_why_none(found, backend.choosing)}"
    for path, why in found.ignored:
        yield f"ignored: {path} {why}"


def table_document(resolution: Resolution, chosen: str | None) -> dict[str, object] | None:
    """For JSON; None if the backend that runs has no tables. `files` are used; `rows` are the numbers measured."""
    backend = _tunable(resolution, chosen)
    if backend is None or not isinstance(backend.choosing, Tuned):
        return None
    found = _found(backend, backend.choosing, resolution)
    return {
        "files": [str(path) for path in found.files],
        "rows": [] if found.table is None else [entry.rows for entry in found.table.entries],
        "ignored": [{"file": str(path), "why": why} for path, why in found.ignored],
    }


def _tunable(resolution: Resolution, chosen: str | None) -> Tunable | None:
    backends: tuple[Backend[Any], ...] = resolution.eligible
    return next((b for b in backends if b.name == chosen and isinstance(b, Tunable)), None)


def _found(backend: Tunable, tuned: Tuned, resolution: Resolution) -> Found:
    return tuned.find(backend.task(resolution.problem, resolution.machine))


def _extent(table: Table) -> str:
    rows = [entry.rows for entry in table.entries]
    counted = "tokens" if table.problem.layout.has_routing else "rows"
    extent = f"{len(rows)} sizes, {rows[0]} to {rows[-1]} {counted}" if rows else "no sizes yet"
    origin = table.origin
    versions = f"torch {origin.torch}, triton {origin.triton}, moesaic {origin.moesaic} (kernels {origin.kernels})"
    return f"{extent}, measured on {origin.device}, {versions}"


def _why_none(found: Found, tuned: Tuned) -> str:
    if found.ignored:
        return "no table is of this problem, device, compiler and kernels"
    where = tuned.directory if tuned.directory is not None else user_tables()
    return f"there is no table of these sizes in {where}, and none comes with the package"
