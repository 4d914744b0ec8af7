"""The accuracies of models as a document: what `moesaic accuracy --json` prints and the page is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from moesaic.cli.accuracy_of_model import Accuracy
from moesaic.cli.short_form import short_form
from moesaic.cli.source_commit import source_commit
from moesaic.conformance.tolerance import tolerance
from moesaic.quant import Scheme

LENGTH = 256
"""Terms of a sum for which the tolerance is told, as in docs/conformance.md."""


def accuracy_document(found: Mapping[str, Sequence[Accuracy]], windows: int) -> dict[str, Any]:
    """Every model's rows, and for each scheme the rms that the conformance kit allows a backend beside the oracle."""
    schemes = dict.fromkeys(row.scheme for rows in found.values() for row in rows)
    return {
        "commit": source_commit(),
        "torch": torch.__version__,
        "windows": windows,
        "schemes": [
            {
                "scheme": repr(scheme),
                "weights": short_form(scheme.weights),
                "inputs": short_form(scheme.inputs),
                "kernel_tolerance": _allowed(scheme),
            }
            for scheme in schemes
        ],
        "models": {name: [_row(row) for row in rows] for name, rows in found.items()},
    }


def _row(row: Accuracy) -> dict[str, Any]:
    return {
        "scheme": repr(row.scheme),
        "bits_per_weight": row.bits_per_weight,
        "bits_per_byte": row.bits_per_byte,
        "layer_errors": dict(row.errors),
    }


def _allowed(scheme: Scheme) -> float:
    return tolerance(torch.bfloat16, scheme, LENGTH, LENGTH).rms
