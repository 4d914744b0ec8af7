"""The page of the documentation on accuracy: a pure function of the document that `moesaic accuracy --json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """\
# What each format costs

Written by `moesaic accuracy --write`; do not edit. The trained models that come with the package, their experts in
every scheme that moesaic names, run by the oracle: weights and inputs are rounded to their formats, nothing else
differs. Rounding is to the nearest, without any calibration but that of NVFP4's global scale.

The models are small: H = I = 128, so that a block of 128 x 128 is a whole matrix, and a group of 128 a whole row.

- **bits**: of a weight, scales included.
- **b/B**: bits per byte of {windows} windows of 512 bytes of held-out text under the whole model in bfloat16.
- **error**: rms error of a layer's output over its standard deviation, on the rows that the unquantized model gives the
  layer and in float32; of the layer that errs most.
- **kit**: the rms that the [conformance kit](conformance.md) allows a backend in bfloat16 (sums of 256 terms) against
  the oracle in the same scheme. It comes on top of the error: a kernel may add to a format's loss only what its own
  roundings explain.

"""


def accuracy_page(document: Mapping[str, Any]) -> str:
    """The page."""
    columns = columns_of(document)
    lines = [columns, ("---", "---", *("---:" for _ in columns[2:])), *rows_of(document)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    foot = f"\nMeasured on {document['commit']} with torch {document['torch']}.\n"
    return _HEAD.format(windows=document["windows"]) + table + foot


def columns_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the table's columns; the first two are text."""
    models = [name.removeprefix("austen-") for name in document["models"]]
    return ("weights", "inputs", "bits", *(f"{name} {what}" for name in models for what in ("b/B", "error")), "kit")


def rows_of(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of the table: one for each scheme."""
    models = [{row["scheme"]: row for row in rows} for rows in document["models"].values()]
    for scheme in document["schemes"]:
        own = [rows[scheme["scheme"]] for rows in models]
        numbers = (f"{row['bits_per_byte']:.4f} {max(row['layer_errors'].values()):.4f}".split() for row in own)
        yield (
            scheme["weights"],
            scheme["inputs"],
            f"{own[0]['bits_per_weight']:.3f}",
            *(number for pair in numbers for number in pair),
            f"{scheme['kernel_tolerance']:.4f}",
        )
