"""Course: the cells one after the other, each with what it shares with those before it, until the time is spent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, final

import torch
from dispatching.cells import Cell, measured
from dispatching.shapes import Job
from dispatching.subjects import DISPATCHERS, LOCAL, Placed, Sizes
from dispatching.traffic import ROUTINGS, placed

from moesaic import Experts
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError, FleetError

SPENT = "the budget was spent"


@final
@dataclass(frozen=True, eq=False)
class Course:
    """`start`: of `time.monotonic`, after which `budget` seconds are spent; then no cell is begun on any rank.

    `recorder`: rounds of the comparison with a layer that counts; 0 for none.
    """

    ranks: Ranks
    jobs: dict[str, Job]
    rounds: int
    budget: float
    start: float
    recorder: int = 0
    placements: dict[tuple[str, str, str], Placement] = field(default_factory=dict)

    def run(self, cells: list[Cell]) -> Iterator[tuple[str, dict[str, Any]]]:
        """("rows", row) or ("not_run", cell and why), the same kinds on all ranks.

        Raises FleetError on all of them for a wrong answer. Cells of one dispatcher and shape share bound experts,
        those of one number of tokens a window, as far as they follow each other.
        """
        for (name, shape), of_shape in groupby(cells, key=lambda cell: (cell.dispatcher, cell.shape)):
            bound: dict[Placement, Experts] = {}
            for tokens, group in groupby(of_shape, key=lambda cell: cell.tokens):
                yield from self._of_one_size(list(group), self.jobs[shape], self._opened(name, shape, tokens), bound)

    def _of_one_size(
        self, cells: list[Cell], job: Job, opened: Placed | str, bound: dict[Placement, Experts]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for cell in cells:
            against = cell.reason_against or (SPENT if self._spent() else "")
            if against or isinstance(opened, str):
                yield "not_run", {**vars(cell), "why": against or opened}
                continue
            begun, placement = time.monotonic(), self._placement(cell, job)
            try:
                dispatcher = opened(placement)
            except DispatchError as fault:  # GPUs of all ranks that cannot do it
                yield "not_run", {**vars(cell), "why": str(fault)}
                continue
            if placement not in bound:
                alone = cell.dispatcher == LOCAL
                bound[placement] = job.whole if alone else job.experts(placement, dispatcher.layout)
            try:
                row = measured(cell, job, placement, (dispatcher, bound[placement]), self.rounds, self.recorder)
            except FleetError as fault:
                raise FleetError(f"{cell}: {fault}") from None
            yield "rows", {**row, "seconds": round(time.monotonic() - begun, 2)}

    def _opened(self, name: str, shape: str, tokens: int) -> Placed | str:
        """The dispatcher, but for its placement; or why this machine cannot have it."""
        job = self.jobs[shape]
        any_cell = Cell(dispatcher=name, shape=shape, tokens=tokens, routing="", placement="")
        if any_cell.reason_against or self._spent():
            return any_cell.reason_against or SPENT
        sizes = Sizes(max_tokens=tokens, hidden_size=job.shape.hidden_size, top_k=job.shape.top_k, dtype=job.dtype)
        try:
            return DISPATCHERS[name](self.ranks, sizes)
        except FleetError as fault:  # the same on all ranks
            return str(fault)

    def _placement(self, cell: Cell, job: Job) -> Placement:
        key = (cell.shape, cell.routing, cell.placement)
        if key not in self.placements:
            self.placements[key] = placed(cell.placement, job, ROUTINGS[cell.routing])
        return self.placements[key]

    def _spent(self) -> bool:
        """Whether the slowest clock of all ranks says so."""
        taken = torch.tensor(time.monotonic() - self.start, dtype=torch.float64, device=self.ranks.device)
        return self.ranks.all_gather(taken, "the time that is spent").max().item() > self.budget
