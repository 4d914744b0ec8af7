"""A drawing as SVG: marks, and below them what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from plots.panel import LEFT
from plots.style import Colours, style

ENTRY = 155
"""Pixels of a name in the legend."""


def columns(width: int) -> int:
    """Names side by side in the legend."""
    return (width - LEFT) // ENTRY


def legend(names: Mapping[str, str], notes: Sequence[str], top: int, width: int) -> Iterator[str]:
    """What the drawing says, and the lines by their names."""
    for number, line in enumerate(notes):
        yield f'<text class="small" x="{LEFT}" y="{top + 10 + 16 * number}">{escape(line)}</text>'
    for number, (name, said) in enumerate(names.items()):
        x, y = LEFT + ENTRY * (number % columns(width)), top + 48 + 18 * (number // columns(width))
        yield f'<polyline class="{name}" points="{x},{y} {x + 22},{y}"/><text x="{x + 28}" y="{y + 4}">{said}</text>'


def picture(size: tuple[int, int], colours: Colours, marks: Sequence[str], entries: Sequence[str], names: int) -> str:
    """`size`: of the panels; the legend with so many names lies below them."""
    width, height = size
    whole = height + 56 + 18 * -(-names // columns(width))
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" height="{whole}">'
    return "\n".join([opened, style(colours), *marks, *entries, "</svg>"]) + "\n"
