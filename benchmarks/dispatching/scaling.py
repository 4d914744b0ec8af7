"""Scaling: what more ranks gain, out of the documents of several numbers of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LOCAL = "local"

Curves = dict[str, dict[int, float]]
"""Of each dispatcher, by the number of ranks: tokens a second of all ranks over those of one rank alone."""


def curves(documents: Iterable[Mapping[str, Any]], shape: str, tokens: int, routing: str, placement: str) -> Curves:
    """Of one panel: so many tokens of each rank, so N times as many on N ranks.

    One rank alone is `local` in the document with the fewest ranks; so begins a line whose dispatcher was not measured
    on one rank. Raises ValueError where no document has it.
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
