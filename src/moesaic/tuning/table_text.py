"""The written form of a table: one JSON document, in which problem and choices are reprs. Nothing is evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar, cast

from moesaic.errors import TuningError
from moesaic.parsing import parse
from moesaic.tuning.choices import read_choice
from moesaic.tuning.origin import Origin
from moesaic.tuning.table import Entry, Table
from moesaic.vocabulary import VOCABULARY

FORMAT = 2
"""Of the written form; another number is not read."""

Value = TypeVar("Value")


def written(table: Table) -> str:
    """`table` as text that `read_table` reads."""
    document = {
        "format": FORMAT,
        "backend": table.backend,
        "problem": repr(table.problem),
        "origin": asdict(table.origin),
        "entries": [
            {
                "rows": entry.rows,
                "choice": repr(entry.choice),
                "microseconds": entry.microseconds,
                "default_microseconds": entry.default_microseconds,
            }
            for entry in table.entries
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def read_table(text: str) -> Table:
    """The table that was written as `text`. Raises a MoesaicError, or ValueError if it is no JSON, saying why not."""
    document = _mapping("table", _parsed(text))
    if document.get("format") != FORMAT:
        raise TuningError(f"the table has the format {document.get('format')!r}, but this moesaic reads {FORMAT}")
    problem = parse(_text("problem", document.get("problem")), {kind.__name__: kind for kind in VOCABULARY})
    entries = document.get("entries")
    if not isinstance(entries, list):
        raise TuningError(f"the table's entries are {entries!r}, but they need to be a list")
    return Table(
        _text("backend", document.get("backend")),
        problem,
        _built(Origin, _mapping("origin", document.get("origin"))),
        tuple(_entry(_mapping("entry", entry)) for entry in cast("list[Any]", entries)),
    )


def format_of(text: str) -> int | None:
    """The number of the form that `text` is written in, also one that is not read here; None if it is no table."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = cast("dict[str, Any]", document).get("format") if isinstance(document, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise TuningError("the table is nested too deeply to be one") from None


def _entry(given: Mapping[str, Any]) -> Entry:
    return _built(Entry, {**given, "choice": read_choice(_text("choice", given.get("choice")))})


def _built(kind: type[Value], given: Mapping[str, Any]) -> Value:
    try:
        return kind(**given)
    except TypeError as fault:
        raise TuningError(f"{dict(given)!r} is no {kind.__name__}: {fault}") from None


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TuningError(f"the {name} is {value!r}, but it needs to be an object of JSON")
    return cast("dict[str, Any]", value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TuningError(f"the table's {name} is {value!r}, but it needs to be a string")
    return value
