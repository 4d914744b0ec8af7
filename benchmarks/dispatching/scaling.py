"""Scaling: what more ranks gain, out of the documents of several numbers of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

LOCAL = "local"

Curves = dict[str, dict[int, float]]
"""Of each dispatcher, by the number of ranks: tokens a second of all ranks over those of one rank alone."""


def read(file: Path) -> dict[str, Any]:
    """A document that expert_parallel.py wrote. Raises ValueError that names the file for anything else."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        int(document["num_ranks"])
        for row in document["rows"]:
            _ = row["shape"], row["tokens"], row["routing"], row["placement"], row["dispatcher"]
            1 / row["layer"]["median"]
    except OSError as fault:
        raise ValueError(f"{file} cannot be read: {fault.strerror}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError):
        raise ValueError(f"{file} is no document that expert_parallel.py wrote") from None
    return document


def curves(documents: Iterable[Mapping[str, Any]], shape: str, tokens: int, routing: str, placement: str) -> Curves:
    """Of one panel: so many tokens of each rank, so N times as many on N ranks.

    One rank alone is `local` in the document with the fewest ranks; so begins a line whose dispatcher was not measured
    on one rank. Raises ValueError where no document has it, or nothing else.
    """
    ordered = sorted(documents, key=lambda document: document["num_ranks"])
    found: dict[str, dict[int, float]] = {}
    alone: float | None = None
    for document in ordered:
        for row in document["rows"]:
            if (row["shape"], row["tokens"], row["routing"]) != (shape, tokens, routing):
                continue
            if row["dispatcher"] == LOCAL:
                alone = row["layer"]["median"] if alone is None else alone
            elif row["placement"] == placement or document["num_ranks"] == 1:
                found.setdefault(row["dispatcher"], {})[document["num_ranks"]] = row["layer"]["median"]
    if alone is None:
        raise ValueError(
            f"no document has {LOCAL} with {shape}, {tokens} tokens and {routing} routing, which ranks are compared "
            "with: measure it too"
        )
    if not found:
        raise ValueError(
            f"no document has a dispatcher with {shape}, {tokens} tokens, {routing} routing and {placement} placement: "
            "measure one too"
        )
    return {
        name: {1: 1.0} | {size: size * alone / layer for size, layer in sorted(times.items())}
        for name, times in found.items()
    }


def axes(documents: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[int]]:
    """The shapes and the numbers of tokens that all documents have, in the first one's order.

    Raises ValueError if there are none.
    """
    rows = [{(row["shape"], row["tokens"]) for row in document["rows"]} for document in documents]
    common = set.intersection(*rows)
    if not common:
        raise ValueError("the documents have no shape and number of tokens in common: measure the same ones")
    ordered = [pair for row in documents[0]["rows"] if (pair := (row["shape"], row["tokens"])) in common]
    return list(dict.fromkeys(shape for shape, _ in ordered)), sorted({tokens for _, tokens in ordered})
