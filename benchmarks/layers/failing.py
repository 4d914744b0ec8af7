"""What went wrong, as one line."""

from __future__ import annotations

import traceback
from pathlib import Path


class BoundBeforeError(Exception):
    """Who could not be bound to these weights, and why."""


def described(fault: Exception) -> str:
    """As one line, with the place: an assertion of others may say nothing else."""
    if isinstance(fault, BoundBeforeError):
        return str(fault)
    last = traceback.extract_tb(fault.__traceback__)[-1]
    said = " ".join(str(fault).split())[:400]
    return f"{type(fault).__name__}: {said} ({Path(last.filename).name}:{last.lineno})"
