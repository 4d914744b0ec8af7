"""Two drawings out of a document that gpu_layer.py or gpu_quantized.py wrote: time, and operations a second.

    python benchmarks/plot_layers.py FILE.json --out DIRECTORY [--shapes qwen3_30b,mixtral] [--columns 2]

`FILE_time.svg` has microseconds against tokens, a panel for each layer and a line for everybody who computed it; dashed
is the floor. `FILE_teraflops.svg` has TFLOP/s, with cuBLAS' batched product as a bound. Answers that were wrong are not
drawn. One file for light and dark pages: it asks the reader's scheme.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layers.curves import FLOOR, MOESAIC, Curves, curves, layers
from plots.panel import HEIGHT, WIDTH, Axis, Panel
from plots.picture import legend, picture

COLOURS = {
    MOESAIC: ("#0072b2", "#56b4e9"),
    "vllm": ("#d55e00", "#ff9a52"),
    "triton_kernels": ("#2e7d32", "#7bd17f"),
    "marlin": ("#a8456f", "#f08fb5"),
    "torch_grouped_mm": ("#8a6d00", "#e6c84a"),
    "deepgemm_gemms": ("#7a4fa3", "#b79be0"),
    "cublas": ("#6b6b6b", "#b5b5b5"),
}
SAID = {
    "vllm": "vLLM",
    "marlin": "Marlin (vLLM)",
    "torch_grouped_mm": "torch grouped_mm",
    "deepgemm_gemms": "DeepGEMM, gemms",
    "cublas": "cuBLAS, bound",
}
"""In the legend, where it is not the name itself."""
NOTES = {
    "microseconds": "microseconds of a layer; dashed: its floor, 790 TFLOP/s (codes of FP8: 1580) or 4.28 TB/s",
    "teraflops": "TFLOP/s of a layer; bounds: products of equal groups, or of ordered rows, and nothing around them",
}
FILES = {"microseconds": "time", "teraflops": "teraflops"}


def short(value: float, thousand: int) -> str:
    """4096 tokens are 4k, 5000 microseconds 5k."""
    return f"{value / thousand:g}k" if value >= thousand else f"{value:g}"


def tokens_axis(tokens: Sequence[int]) -> Axis:
    """Every second power of two has a tick."""
    powers = range(math.floor(math.log2(min(tokens))), math.ceil(math.log2(max(tokens))) + 1)
    ticks = {2.0**power: short(2**power, 1024) for power in powers if power % 2 == powers[0] % 2}
    return Axis(min(tokens), max(*tokens, 2 * min(tokens)), ticks)


def time_axis(values: Sequence[float]) -> Axis:
    """From 1, 2 or 5 times a power of ten to another."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    ladder = [float(f"{step}e{power}") for power in range(low, high + 1) for step in (1, 2, 5)]
    first = max(step for step in ladder if step <= min(values))
    last = min(step for step in ladder if step >= max(values) and step > first)
    return Axis(first, last, {step: short(step, 1000) for step in ladder if first <= step <= last})


def speed_axis(values: Sequence[float]) -> Axis:
    """Linear from zero, in hundreds or so."""
    step = next(step for step in (1, 10, 50, 100, 200, 500) if max(values) <= 6 * step)
    last = step * max(math.ceil(max(values) / step), 1)
    return Axis(0, last, {float(tick): str(tick) for tick in range(0, last + 1, step)}, logarithmic=False)


def panel(title: str, column: str, lines: Curves, corner: tuple[int, int]) -> Iterator[str]:
    """One layer."""
    tokens = sorted({number for points in lines.values() for number in points})
    values = [value for points in lines.values() for value in points.values()]
    across = tokens_axis(tokens)
    plot = Panel(corner=corner, across=across, up=time_axis(values) if column == "microseconds" else speed_axis(values))
    yield from plot.frame(title, math.sqrt(across.first * across.last), "tokens")
    if FLOOR in lines:
        yield plot.dashed(lines[FLOOR])
    for name in reversed([name for name in COLOURS if name in lines]):  # moesaic above the others
        yield from plot.curve(name, lines[name])


def shown(document: Mapping[str, Any], shape: str, scheme: str, column: str) -> Curves:
    """Bounds and products alone are no layer: they are drawn where speed is, but not among times."""
    bounds = {row["impl"] for row in document["rows"] if row["scope"] != "layer"}
    return {
        name: points
        for name, points in curves(document, shape, scheme, column).items()
        if column == "teraflops" or name not in bounds
    }


def drawing(document: Mapping[str, Any], column: str, shapes: Sequence[str], wide: int) -> str:
    """All layers of these shapes, so many side by side, as SVG. Raises ValueError if there are none."""
    panels = [
        (shape if scheme == "bf16" else f"{shape}, {scheme}", shown(document, shape, scheme, column))
        for shape, scheme in layers(document)
        if shape in shapes
    ]
    if not panels:
        raise ValueError(f"the document has no layer of {', '.join(shapes)}: measure one")
    drawn = {name for _, lines in panels for name in lines}
    names = {name: SAID.get(name, name) for name in COLOURS if name in drawn}
    size = (WIDTH * max(wide, 2), HEIGHT * -(-len(panels) // wide))
    places = [(WIDTH * (number % wide), HEIGHT * (number // wide)) for number in range(len(panels))]
    marks = [
        mark
        for (title, lines), corner in zip(panels, places, strict=True)
        for mark in panel(title, column, lines, corner)
    ]
    notes = (NOTES[column], said_of(document))
    return picture(size, COLOURS, marks, list(legend(names, notes, size[1], size[0])), len(names))


def said_of(document: Mapping[str, Any]) -> str:
    """Where it was measured, and with which routing."""
    machine = str(document["machine"])
    name = machine.split("name='")[1].split("'", maxsplit=1)[0] if "name='" in machine else machine
    skew, hot = document.get("skew", 0.0), document.get("hot", 0.0)
    routing = f"Zipf {skew:g}" if skew else f"one expert for {hot:.0%} of the tokens" if hot else "even routing"
    graphs = " as CUDA graphs" if document["device"] == "cuda" else ""
    return f"{name}, {routing}, medians of {document['rounds']} rounds in which all take turns{graphs}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a directory")
    parser.add_argument("--shapes", type=lambda text: text.split(","), help="some of the document's (all)")
    parser.add_argument("--columns", type=int, default=2)
    given = parser.parse_args(arguments)
    document = json.loads(given.document.read_text(encoding="utf-8"))
    shapes = given.shapes or [shape for shape, _ in layers(document)]
    for column, name in FILES.items():
        try:
            text = drawing(document, column, shapes, given.columns)
        except ValueError as fault:
            raise SystemExit(str(fault)) from None
        (given.out / f"{given.document.stem}_{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
