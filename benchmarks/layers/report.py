"""The document of a run: what ran where, a row for each contender of a cell, and what did not run and why."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from layers.curves import best_peer

KINDS = ("rows", "not_run")
CELL = ("shape", "scheme", "tokens")


@final
@dataclass(frozen=True, eq=False)
class Report:
    """`head`: what is the same for all rows. `out`: the file that `write` leaves whole at every moment."""

    head: dict[str, Any]
    out: Path | None
    found: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def resume(self) -> None:
        """Take over the rows that `out` holds, if it is there, and who failed beside them.

        Raises ValueError if they are of another commit, machine or options: figures of two runs are not compared.
        """
        if self.out is None or not self.out.exists():
            return
        before = json.loads(self.out.read_text(encoding="utf-8"))
        for name in set(self.head) - {"versions", "shapes"}:
            if before.get(name) != self.head[name]:
                raise ValueError(
                    f"{self.out} has {name} {before.get(name)!r}, but this run {self.head[name]!r}: write another file"
                )
        self.head["shapes"] = {**before["shapes"], **self.head["shapes"]}
        self.head["versions"] = {**before["versions"], **self.head["versions"]}
        self.found["rows"] += before["rows"]
        self.found["not_run"] += [
            row for row in before["not_run"] if self.has(**{name: row.get(name) for name in CELL})
        ]

    def has(self, **wanted: Any) -> bool:
        """Whether a row has these values."""
        return any(all(row[name] == value for name, value in wanted.items()) for row in self.found["rows"])

    def write(self) -> None:
        """The document so far, with a line for each row."""
        if self.out is None:
            return
        head = json.dumps(self.head, indent=1).removesuffix("\n}")
        lists = [
            f' "{kind}": [' + ",".join(f"\n  {json.dumps(row)}" for row in rows) + "\n ]"
            for kind, rows in self.found.items()
        ]
        new = self.out.with_name(self.out.name + ".new")
        new.write_text(",\n".join([head, *lists]) + "\n}\n", encoding="utf-8")
        new.replace(self.out)  # so that a run that is ended while it writes leaves the rows before


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def line(rows: Sequence[Mapping[str, Any]]) -> str:
    """One cell for people: moesaic first, its ratio to the floor and to the best peer that is right."""
    first = rows[0]
    said = ", ".join(f"{row['impl']} {row['microseconds']:.1f}" + " WRONG" * ("wrong" in row) for row in rows)
    text = f"{first['shape']} {first['scheme']} T={first['tokens']}: {said} us"
    text += (
        f"; {first['microseconds'] / first['floor_microseconds']:.3f} of the floor {first['floor_microseconds']:.1f}"
    )
    best = best_peer(rows)
    if best is not None and first["role"] == "moesaic":
        text += f", {best['microseconds'] / first['microseconds']:.2f} times as fast as the best peer"
    host = first.get("host_microseconds")
    return f"{text}, {first['teraflops']:.0f} TFLOP/s" + (f", host {host:.0f} us" if host else "")
