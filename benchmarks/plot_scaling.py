"""A drawing of what more ranks gain, out of documents that expert_parallel.py wrote.

    python benchmarks/plot_scaling.py X1.json X2.json ... --out FILE.svg [--tokens 64,4096] [--routing uniform]

A panel for each shape and number of tokens a rank; a line for each dispatcher; both axes are logarithmic. The dashed
line is N times the tokens a second of one rank alone. `--note`: a line more, on what was measured and what was not. One
file for light and dark pages: it asks the reader's scheme.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from dispatching.scaling import Curves, axes, curves, read
from dispatching.traffic import PLACEMENTS, ROUTINGS
from plots.panel import HEIGHT, WIDTH, Axis, Panel
from plots.picture import legend, picture

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
SAID = "tokens a second of all ranks, over one rank that holds all experts; dashed: in proportion to the ranks"


def panel(title: str, lines: Curves, corner: tuple[int, int]) -> Iterator[str]:
    """One plot with its upper left corner there."""
    sizes = sorted({size for points in lines.values() for size in points} | {1})
    values = [value for points in lines.values() for value in points.values()]
    low, high = math.floor(math.log2(min([1.0, *values]))), math.ceil(math.log2(max([sizes[-1], *values])))
    ticks = {2.0**power: f"{2**power}" if power >= 0 else f"1/{2**-power}" for power in range(low, high + 1)}
    last = max(sizes[-1], 2)
    plot = Panel(
        corner=corner,
        across=Axis(1, last, {size: str(size) for size in sizes}),
        up=Axis(2.0**low, 2.0**high, ticks),
    )
    yield from plot.frame(title, math.sqrt(last), "ranks")
    (x, y), (end, top) = plot.place(1, 1), plot.place(sizes[-1], sizes[-1])
    yield f'<line class="one" x1="{x}" y1="{y}" x2="{end}" y2="{top}"/>'
    for name, points in lines.items():
        yield from plot.curve(name, points)


def drawing(panels: Sequence[Sequence[tuple[str, Curves]]], note: str = "") -> str:
    """Rows of panels with a legend below, as SVG."""
    width, height = max(WIDTH * len(panels[0]), 660), HEIGHT * len(panels)
    shown = {name for row in panels for _, lines in row for name in lines}
    names = {name: name for name in COLOURS if name in shown}
    marks = [
        mark
        for y, row in enumerate(panels)
        for x, (title, lines) in enumerate(row)
        for mark in panel(title, lines, (WIDTH * x, HEIGHT * y))
    ]
    return picture((width, height), COLOURS, marks, list(legend(names, (SAID, note), height, width)), len(names))


def numbers(text: str) -> list[int]:
    """Whole numbers, with commas between them."""
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="+")
    parser.add_argument("--tokens", type=numbers)
    parser.add_argument("--routing", choices=ROUTINGS, default="uniform")
    parser.add_argument("--placement", choices=PLACEMENTS, default="contiguous")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        documents = [read(file) for file in given.documents]
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
    try:
        given.out.write_text(drawing(panels, given.note), encoding="utf-8")
    except OSError as fault:
        raise SystemExit(f"{given.out} cannot be written: {fault.strerror}") from None


if __name__ == "__main__":
    main()
