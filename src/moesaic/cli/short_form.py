"""short_form: the shortest text that is read as the same format, for tables."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from moesaic.quant import Format, Granularity


def short_form(stored: Format) -> str:
    """`FP8(PerBlock())` for `FP8(granularity=PerBlock(rows=128, columns=128), scale=torch.float32)`."""
    return _shortened(stored)


def _shortened(value: Any) -> str:
    """Fields that have their defaults are left out, and the names of those that have none."""
    if not isinstance(value, Format | Granularity):
        return repr(value)
    given = [(field, getattr(value, field.name)) for field in fields(value)]
    parts = (
        _shortened(found) if field.default is MISSING else f"{field.name}={_shortened(found)}"
        for field, found in given
        if field.default is MISSING or found != field.default
    )
    return f"{value.__class__.__name__}({', '.join(parts)})"
