"""A drawing of what more ranks gain, out of documents that expert_parallel.py wrote.

    python benchmarks/plot_scaling.py X1.json X2.json ... --out FILE.svg [--tokens 64,4096] [--routing uniform]

A panel for each shape and number of tokens a rank; a line for each dispatcher; both axes are logarithmic. The dashed
line is N times the tokens a second of one rank alone. `--note`: a line more, on what was measured and what was not. One
file for light and dark pages: it asks the reader's scheme.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from dispatching.scaling import Curves, axes, curves

WIDTH, HEIGHT = 330, 250
"""Of a panel."""
LEFT, TOP, RIGHT, BOTTOM = 46, 34, 12, 40
"""Around its plot."""
COLOURS = {
    "symmetric": ("#0072b2", "#56b4e9"),
    "symmetric_slabs": ("#7a4fa3", "#b79be0"),
    "symmetric_grouped": ("#00796b", "#4dd0b5"),
    "symmetric_fp8": ("#003f7d", "#a5d8ff"),
    "padded": ("#d55e00", "#ff9a52"),
    "padded_fp8": ("#8c3b00", "#ffc9a3"),
    "padded_grouped": ("#a8456f", "#f08fb5"),
    "low_latency": ("#8a6d00", "#e6c84a"),
    "all_to_all": ("#2e7d32", "#7bd17f"),
    "all_gather": ("#6b6b6b", "#b5b5b5"),
}
"""Of each line on light and on dark pages."""
STYLE = """
 text { font: 12px sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
 .grid { stroke: #d1d9e0; stroke-width: 1 } .one { stroke: #59636e; stroke-dasharray: 4 4; fill: none }
 polyline { fill: none; stroke-width: 2 }"""
DARK = " text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .one { stroke: #9198a1 }"


def style() -> str:
    """The rules of both schemes."""
    both = [
        [
            f".{name} {{ stroke: {pair[scheme]} }} .dot-{name} {{ fill: {pair[scheme]} }}"
            for name, pair in COLOURS.items()
        ]
        for scheme in (0, 1)
    ]
    light, dark = ("\n ".join(rules) for rules in both)
    return f"<style>{STYLE}\n {light}\n @media (prefers-color-scheme: dark) {{\n{DARK}\n {dark}\n }}\n</style>"


def panel(title: str, lines: Curves, corner: tuple[int, int]) -> Iterator[str]:
    """One plot with its upper left corner there."""
    sizes = sorted({size for points in lines.values() for size in points} | {1})
    values = [value for points in lines.values() for value in points.values()]
    low, high = math.floor(math.log2(min([1.0, *values]))), math.ceil(math.log2(max([sizes[-1], *values])))
    last = max(math.log2(sizes[-1]), 1.0)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(size: float, value: float) -> tuple[float, float]:
        x = corner[0] + LEFT + wide * math.log2(size) / last
        return round(x, 1), round(corner[1] + TOP + tall * (high - math.log2(value)) / max(high - low, 1), 1)

    yield f'<text x="{corner[0] + LEFT}" y="{corner[1] + 20}">{escape(title)}</text>'
    for power in range(low, high + 1):
        (x, y), (end, _) = place(1, 2.0**power), place(2**last, 2.0**power)
        yield f'<line class="grid" x1="{x}" y1="{y}" x2="{end}" y2="{y}"/>'
        said = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        yield f'<text class="small" x="{x - 8}" y="{y + 4}" text-anchor="end">{said}</text>'
    for size in sizes:
        x, y = place(size, 2.0**low)
        yield f'<text class="small" x="{x}" y="{y + 16}" text-anchor="middle">{size}</text>'
    x, y = place(2 ** (last / 2), 2.0**low)
    yield f'<text class="small" x="{x}" y="{y + 32}" text-anchor="middle">ranks</text>'
    (x, y), (end, top) = place(1, 1), place(sizes[-1], sizes[-1])
    yield f'<line class="one" x1="{x}" y1="{y}" x2="{end}" y2="{top}"/>'
    for name, points in lines.items():
        placed = [place(size, value) for size, value in points.items()]
        yield f'<polyline class="{name}" points="{" ".join(f"{x},{y}" for x, y in placed)}"/>'
        yield from (f'<circle class="dot-{name}" cx="{x}" cy="{y}" r="3"/>' for x, y in placed)


def legend(names: Sequence[str], note: str, top: int, columns: int) -> Iterator[str]:
    """The names of the lines, and what the drawing says."""
    said = "tokens a second of all ranks, over one rank that holds all experts; dashed: in proportion to the ranks"
    for number, line in enumerate((said, note)):
        yield f'<text class="small" x="{LEFT}" y="{top + 10 + 16 * number}">{escape(line)}</text>'
    for number, name in enumerate(names):
        x, y = LEFT + 155 * (number % columns), top + 48 + 18 * (number // columns)
        yield f'<polyline class="{name}" points="{x},{y} {x + 22},{y}"/><text x="{x + 28}" y="{y + 4}">{name}</text>'


def drawing(panels: Sequence[Sequence[tuple[str, Curves]]], note: str = "") -> str:
    """Rows of panels with a legend below, as SVG."""
    width, height = max(WIDTH * len(panels[0]), 660), HEIGHT * len(panels)
    shown = {name for row in panels for _, lines in row for name in lines}
    names = [name for name in COLOURS if name in shown]
    columns = (width - LEFT) // 155
    whole = height + 56 + 18 * -(-len(names) // columns)
    marks = [
        mark
        for y, row in enumerate(panels)
        for x, (title, lines) in enumerate(row)
        for mark in panel(title, lines, (WIDTH * x, HEIGHT * y))
    ]
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" height="{whole}">'
    return "\n".join([opened, style(), *marks, *legend(names, note, height, columns), "</svg>"]) + "\n"


def main() -> None:
    """Read, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="+")
    parser.add_argument("--tokens", type=lambda text: [int(number) for number in text.split(",")])
    parser.add_argument("--routing", default="uniform")
    parser.add_argument("--placement", default="contiguous")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in given.documents]
    try:
        shapes, counts = axes(documents)
        panels = [
            [
                (f"{shape}, tokens a rank: {tokens}", curves(documents, shape, tokens, given.routing, given.placement))
                for shape in shapes
            ]
            for tokens in given.tokens or counts
        ]
    except ValueError as fault:
        raise SystemExit(str(fault)) from None
    given.out.write_text(drawing(panels, given.note), encoding="utf-8")


if __name__ == "__main__":
    main()
