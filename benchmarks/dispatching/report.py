"""The document of a run: what ran where, a row for each cell, and the cells that did not run; rank 0 keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

PARTS = ("dispatch", "compute", "combine", "layer")


@final
@dataclass(frozen=True, eq=False)
class Report:
    """`head`: what is the same for all rows. `out`: the file that is written after each; None on other ranks."""

    head: Mapping[str, Any]
    out: Path | None
    shown: bool
    found: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"kit": [], "rows": [], "not_run": []})

    def add(self, kind: str, row: dict[str, Any], seconds: float) -> None:
        """A row of `kit`, `rows` or `not_run`, `seconds` after the start."""
        self.found[kind].append(row)
        if self.shown:
            print(line(row) if kind == "rows" else json.dumps(row), flush=True)
        if self.out is not None:
            new = self.out.with_name(self.out.name + ".new")
            new.write_text(self.text(seconds), encoding="utf-8")
            new.replace(self.out)  # so that a run that is ended while it writes leaves the rows before

    def text(self, seconds: float) -> str:
        """The document as JSON, a line for each row."""
        head = json.dumps({**self.head, "seconds": round(seconds, 1)}, indent=1).removesuffix("\n}")
        lists = [
            f' "{kind}": [' + ",".join(f"\n  {json.dumps(row)}" for row in rows) + "\n ]"
            for kind, rows in self.found.items()
        ]
        return ",\n".join([head, *lists]) + "\n}\n"


def line(row: Mapping[str, Any]) -> str:
    """One cell for people."""
    name = f"{row['shape']:<15} {row['tokens']:>5} {row['routing']:<8} {row['placement']:<10} {row['dispatcher']:<17}"
    times = "  ".join(f"{part} {row[part]['median']:>9.1f}" for part in PARTS)
    over = f"layer/sum {row['layer_over_sum']:.2f}  layer/max {row['layer_over_max']:.2f}"
    speed = f"{row['dispatch_gigabytes_a_second']:.1f} {row['combine_gigabytes_a_second']:.1f} GB/s"
    level = f"balancedness {row['balancedness']:.2f}" if "balancedness" in row else ""
    more = f"recorder {row['recorder']['recorded_percent']:+.2f} %" if "recorder" in row else ""
    return f"{name} {row['timed']:<5}  {times} us  {over}  {speed}  {level}  {more}".rstrip()
