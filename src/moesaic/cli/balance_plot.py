"""The plot of `moesaic balance`: what each rank carries, as bars of letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

COLUMNS = 60
"""The longest bar."""


def bars(title: str, relative: Sequence[float], longest: float) -> Iterator[str]:
    """A line for each rank, whose load is given over the mean of ranks; `longest` is the load of the longest bar."""
    yield f"{title} (a rank's load over the mean; the mean is at |)"
    for rank, load in enumerate(relative):
        length, mark = (round(value / longest * COLUMNS) if longest else 0 for value in (load, 1.0))
        line = list("#" * length + " " * (COLUMNS + 1 - length))
        line[mark] = "|"
        yield f"rank {rank:>4}  {load:6.3f}  {''.join(line).rstrip()}"
