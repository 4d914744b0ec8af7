"""Curves: what a document of layers says of each contender, by the number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOESAIC = "moesaic"
FLOOR = "floor"
Curves = dict[str, dict[int, float]]


def name_of(row: Mapping[str, Any]) -> str | None:
    """What readers know it by; None for what is not shown: what moesaic did not choose, or a wrong answer."""
    if "wrong" in row or row["role"] == "variant":
        return None
    return MOESAIC if row["role"] == "moesaic" else str(row["impl"])


def layers(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(shape, scheme) pairs in the order of the document."""
    return list(dict.fromkeys((row["shape"], row["scheme"]) for row in document["rows"]))


def curves(document: Mapping[str, Any], shape: str, scheme: str, column: str) -> Curves:
    """By name and number of tokens; of times the floor too."""
    found: Curves = {}
    for row in document["rows"]:
        name = name_of(row)
        if (row["shape"], row["scheme"]) != (shape, scheme) or name is None:
            continue
        found.setdefault(name, {})[row["tokens"]] = row[column]
        if column == "microseconds":
            found.setdefault(FLOOR, {})[row["tokens"]] = row["floor_microseconds"]
    return {name: dict(sorted(points.items())) for name, points in found.items()}


def best_peer(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Of one cell: the fastest whole layer that is not ours and is right."""
    right = [row for row in rows if row["role"] == "peer" and row["scope"] == "layer" and "wrong" not in row]
    return min(right, key=lambda row: row["microseconds"], default=None)
