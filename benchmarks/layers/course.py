"""Course: all cells in turn; what fails is left out of its cell with the reason, and the rest goes on."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from layers.cells import Cell, Family
from layers.clock import Run, host_microseconds, in_rounds
from layers.conditions import Conditions
from layers.contender import Contender
from layers.drawn_layer import DrawnLayer
from layers.failing import described
from layers.judging import Wanted, Watched, expected, facts, figures, judged, judged_again
from torch import Tensor

from moesaic import Problem, StandardBatch

SPENT = "the budget was spent"
HOST_UP_TO = 8
"""Tokens up to which the host may be slower than the device."""
Entry = tuple[str, dict[str, Any]]


@final
@dataclass(eq=False)
class Course:
    """`versions`: of everybody who computed something. `faults`: of moesaic itself. `lost`: why the device is gone."""

    family: Family
    conditions: Conditions
    versions: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    lost: str = ""
    layer: DrawnLayer | None = None

    def run(self, cells: Sequence[Cell]) -> Iterator[list[Entry]]:
        """For each cell its ("rows", row) and ("not_run", who and why)."""
        absent = {p.name: p.missing for s in {c.scheme for c in cells} for p in self._asked(s) if p.missing}
        yield [("not_run", {"impl": name, "why": why}) for name, why in absent.items()]
        for cell in cells:
            if self.lost or self.conditions.spent:
                yield [("not_run", {**vars(cell), "impl": "all", "why": self.lost or SPENT})]
                continue
            try:
                entries = self._of(cell)
            except Exception as fault:  # noqa: BLE001 - a cell that fails as a whole leaves the others
                entries = [("not_run", {**vars(cell), "impl": "all", "why": self._failed(fault)})]
                self.faults.append(f"{cell}: {entries[0][1]['why']}")
            self.conditions.clock.release()
            yield entries

    def warm(self, cells: Sequence[Cell]) -> Iterator[str]:
        """Only compile: one call of everybody in each cell. What failed, as text."""
        for cell in cells:
            if self.conditions.spent:
                yield f"{cell} and what follows: {SPENT}"
                return
            try:
                layer = self._layer(cell)
                batch = self._batches(cell, 1)[0]
            except Exception as fault:  # noqa: BLE001
                yield f"{cell}: {self._failed(fault)}"
                continue
            for contender in self._contenders(cell, layer.problem):
                try:
                    layer.bound(contender)(batch)()
                    self.conditions.clock.settle()
                except Exception as fault:  # noqa: BLE001
                    yield f"{cell}: {contender.name}: {self._failed(fault)}"
                if self.lost:
                    return
            del batch
            self.conditions.clock.release()

    def _asked(self, scheme: str) -> list[Contender]:
        return [peer for peer in self.family.peers(scheme) if peer.name in self.conditions.peers]

    def _contenders(self, cell: Cell, problem: Problem) -> list[Contender]:
        peers = [p for p in self._asked(cell.scheme) if not p.missing and p.fits(problem, cell.tokens)]
        return [*self.family.own(cell, problem, self.conditions.device), *peers]

    def _batches(self, cell: Cell, count: int) -> list[StandardBatch]:
        given = self.conditions
        return given.traffic.batches(cell.tokens, cell.sizes, count, given.device, torch.bfloat16)

    def _layer(self, cell: Cell) -> DrawnLayer:
        if self.layer is None or not self.layer.serves(cell):
            self.layer = None  # before the next weights are drawn
            gc.collect()
            self.conditions.clock.release()
            weights = self.family.weights(cell, self.conditions.device)
            self.layer = DrawnLayer(cell.scheme, cell.shape, weights, self.family.problem(cell))
        return self.layer

    def _of(self, cell: Cell) -> list[Entry]:
        clock, layer = self.conditions.clock, self._layer(cell)
        batches = self._batches(cell, cell.inputs)
        known: Wanted = {}
        runs: dict[str, Run] = {}
        rows: dict[str, dict[str, Any]] = {}
        timed: list[tuple[Contender, Watched, Tensor | None]] = []
        entries: list[Entry] = []
        contenders = self._contenders(cell, layer.problem)
        for contender in contenders:
            role = "peer" if not contender.own else "moesaic" if contender == contenders[0] else "variant"
            try:
                bound = layer.bound(contender)
                self.versions.update(contender.versions)
                calls = [bound(batch) for batch in batches]
                row = {"role": role, "scope": contender.scope, **contender.remarks(layer.problem)}
                right = expected(contender, batches[0], layer.weights, self.family.checked_tokens, known)
                row |= judged(contender, calls[0], right)
                watched = Watched(calls[0])
                runs[contender.name] = clock.captured([watched, *calls[1:]])
                if role == "moesaic" and cell.tokens <= HOST_UP_TO:
                    row["host_microseconds"] = round(host_microseconds(clock, calls[0]), 1)
                rows[contender.name] = row
                timed.append((contender, watched, right))
            except Exception as fault:  # noqa: BLE001
                runs.pop(contender.name, None)
                why = self._failed(fault)
                entries.append(("not_run", {**vars(cell), "impl": contender.name, "why": why}))
                if contender.own:
                    self.faults.append(f"{cell}: {contender.name}: {why}")
                if self.lost:
                    return entries
        if not runs:
            return entries
        times = in_rounds(clock, runs, len(batches), self.conditions.rounds)
        for contender, watched, right in timed:
            rows[contender.name] = judged_again(contender, watched, right) | rows[contender.name]
            if contender.own and "wrong" in rows[contender.name]:
                self.faults.append(f"{cell}: {contender.name} is wrong: {rows[contender.name]['wrong']}")
        flops = layer.problem.flops(cell.tokens * layer.problem.top_k)
        shared = facts(layer.problem, cell.tokens, batches)
        found = (("rows", figures(cell, name, times[name], flops) | shared | row) for name, row in rows.items())
        return [*entries, *found]

    def _failed(self, fault: Exception) -> str:
        """What went wrong as one line; and whether the device survived it."""
        text = described(fault)
        try:
            self.conditions.clock.settle()
            self.conditions.clock.release()
        except Exception as gone:  # noqa: BLE001
            self.lost = f"the device is lost ({' '.join(str(gone).split())[:100]}) since {text}"
        return text
