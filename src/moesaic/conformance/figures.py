"""Figures in messages: three significant digits, and which measures of a deviation went over which limit."""

from __future__ import annotations

from dataclasses import fields

from moesaic.conformance.noise import Deviation

NEAR = 0.05
"""Share of a value below which another reads much like it."""


def figure(value: float) -> str:
    """`value` to three significant digits, for instance 0.0115 or 5.3e-07; a whole number, such as an id, as it is."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def apart(got: float, wanted: float) -> str:
    """Two values, with their distance where three digits hardly show it: `1.5 instead of 1.5, off by 1.2e-06`."""
    text = f"{figure(got)} instead of {figure(wanted)}"
    return f"{text}, off by {figure(abs(got - wanted))}" if abs(got - wanted) < NEAR * abs(wanted) else text


def excess(found: Deviation, allowed: Deviation) -> tuple[str, str]:
    """What was needed and what was got, of the measures of `found` that are above `allowed` only.

    For instance `("rms at most 0.0115, row at most 0.03", "rms 0.24, row 0.31")`.
    """
    pairs = [(field.name, getattr(found, field.name), getattr(allowed, field.name)) for field in fields(Deviation)]
    over = [(name, value, limit) for name, value, limit in pairs if not value <= limit]  # NaN exceeds everything
    return (
        ", ".join(f"{name} at most {figure(limit)}" for name, _, limit in over),
        ", ".join(f"{name} {figure(value)}" for name, value, _ in over),
    )
