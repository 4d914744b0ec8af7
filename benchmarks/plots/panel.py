"""One plot of a drawing: its place, its axes, and points and lines on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 330, 250
"""Of a panel."""
LEFT, TOP, RIGHT, BOTTOM = 46, 34, 12, 40
"""Around its plot."""


@final
@dataclass(frozen=True)
class Axis:
    """From one value to another. `ticks`: what is said at which values."""

    first: float
    last: float
    ticks: Mapping[float, str]
    logarithmic: bool = True

    def at(self, value: float) -> float:
        """Where a value lies, in units of the axis."""
        return math.log2(value) if self.logarithmic else value

    @property
    def length(self) -> float:
        """In units of the axis, at least one of a logarithmic one."""
        whole = self.at(self.last) - self.at(self.first)
        return max(whole, 1.0) if self.logarithmic else whole


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """`corner`: upper left, in pixels. Values outside the axes lie outside the panel."""

    corner: tuple[int, int]
    across: Axis
    up: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point."""
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        right = (
            self.corner[0] + LEFT + wide * (self.across.at(x) - self.across.at(self.across.first)) / self.across.length
        )
        below = self.corner[1] + TOP + tall * (self.up.at(self.up.last) - self.up.at(y)) / self.up.length
        return round(right, 1), round(below, 1)

    def frame(self, title: str, middle: float, unit: str) -> Iterator[str]:
        """Title, grid, ticks, and below `middle` what is counted across."""
        across, up = self.across, self.up
        yield f'<text x="{self.corner[0] + LEFT}" y="{self.corner[1] + 20}">{escape(title)}</text>'
        for value, said in up.ticks.items():
            (x, y), (end, _) = self.place(across.first, value), self.place(across.last, value)
            yield f'<line class="grid" x1="{x}" y1="{y}" x2="{end}" y2="{y}"/>'
            yield f'<text class="small" x="{x - 8}" y="{y + 4}" text-anchor="end">{said}</text>'
        for value, said in across.ticks.items():
            x, y = self.place(value, up.first)
            yield f'<text class="small" x="{x}" y="{y + 16}" text-anchor="middle">{said}</text>'
        x, y = self.place(middle, up.first)
        yield f'<text class="small" x="{x}" y="{y + 32}" text-anchor="middle">{unit}</text>'

    def curve(self, name: str, points: Mapping[float, float]) -> Iterator[str]:
        """A line with a dot at every point."""
        placed = [self.place(x, y) for x, y in points.items()]
        yield f'<polyline class="{name}" points="{joined(placed)}"/>'
        yield from (f'<circle class="dot-{name}" cx="{x}" cy="{y}" r="3"/>' for x, y in placed)

    def dashed(self, points: Mapping[float, float]) -> str:
        """A line to compare with."""
        return f'<polyline class="one" points="{joined([self.place(x, y) for x, y in points.items()])}"/>'


def joined(placed: list[tuple[float, float]]) -> str:
    """Points as SVG has them."""
    return " ".join(f"{x},{y}" for x, y in placed)
