"""Cell: one dispatcher with one shape, number of tokens, routing and placement; the plan of all, and one's row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, final

from dispatching.equality import compared, layer
from dispatching.recording import counting
from dispatching.shapes import Job
from dispatching.subjects import LOCAL, SLABS, SLABS_UP_TO
from dispatching.timing import timed
from dispatching.traffic import ROUTINGS, balancedness, busiest, call, flows

from moesaic import Dispatcher, Experts
from moesaic.dispatch.placement import Placement


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """`tokens` of each rank."""

    dispatcher: str
    shape: str
    tokens: int
    routing: str
    placement: str

    @property
    def reason_against(self) -> str:
        """Why it is not measured on any machine; empty if it is."""
        if self.dispatcher in SLABS and self.tokens > SLABS_UP_TO:
            return f"slabs of every expert hold all tokens: for {SLABS_UP_TO} tokens a rank at most"
        return ""


@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for: the values of each axis, in the order in which they are measured."""

    dispatchers: tuple[str, ...]
    shapes: tuple[str, ...]
    tokens: tuple[int, ...]
    routings: tuple[str, ...]
    placements: tuple[str, ...]

    def cells(self, num_ranks: int) -> list[Cell]:
        """All of them, but not a balanced placement where the contiguous one is level: of one rank, of even routing.

        `local` has no placement, so it is measured once for each routing.
        """
        axes = (self.dispatchers, self.shapes, self.tokens, self.routings, self.placements)
        found = [
            Cell(dispatcher=dispatcher, shape=shape, tokens=tokens, routing=routing, placement=placement)
            for dispatcher, shape, tokens, routing, placement in product(*axes)
        ]
        alike = {cell for cell in found if cell.dispatcher == LOCAL or num_ranks == 1 or not ROUTINGS[cell.routing]}
        return [cell for cell in found if cell not in alike or cell.placement == "contiguous"]


def measured(
    cell: Cell, job: Job, placement: Placement, subject: tuple[Dispatcher[Any], Experts], rounds: int, recorder: int = 0
) -> dict[str, Any]:
    """The row of one cell; of `recorder` rounds more what counting the experts' load adds to its layer.

    Raises FleetError on all ranks if its answer is not that of one rank, or if it counts something else.
    """
    dispatcher, experts = subject
    exponent, shape = ROUTINGS[cell.routing], job.shape
    # Several calls in a round, for what a start and an end cost; with other tokens, so that caches are not all warm.
    calls = [call(job, cell.tokens, exponent, seed) for seed in range(4 if cell.tokens <= 512 else 2)]
    held = range(shape.num_experts) if cell.dispatcher == LOCAL else placement.experts[job.ranks.rank]
    figures = compared(dispatcher, experts, job, held, calls)
    graph = calls[0][0].is_cuda and not dispatcher.synchronises
    delivered = [dispatcher.dispatch(*given) for given in calls]
    made = [(experts(batch), receipt) for batch, receipt in delivered]
    more = 4 if graph else 1  # where a call is a few microseconds
    works = {
        "dispatch": [lambda c=c: dispatcher.dispatch(*c) for c in calls] * more,
        "compute": [lambda d=d: experts(d[0]) for d in delivered],
        "combine": [lambda m=m: dispatcher.combine(*m) for m in made] * more,
        "layer": [lambda c=c: layer(dispatcher, experts, c) for c in calls],
    }
    times = {part: timed(work, job.ranks, rounds, graph=graph) for part, work in works.items()}
    tokens, pairs = flows(job, placement, calls)
    there = back = 0.0
    if cell.dispatcher != LOCAL:
        figures["balancedness"] = round(balancedness(pairs), 4)
        stored = dispatcher.rounding.storage((1, shape.hidden_size), job.dtype).values()
        there = busiest(tokens) * sum(part.dtype.itemsize * prod(part.shape) for part in stored) / 1e6
        back = busiest(tokens) * shape.hidden_size * job.dtype.itemsize / 1e6
    if recorder:
        figures["recorder"] = counting(dispatcher, experts, job, calls, recorder)
    return {
        **vars(cell),
        "backend": experts.backend.name,
        "rounding": repr(dispatcher.rounding),
        "timed": "graph" if graph else "eager",
        **figures,
        **times,
        **ratios(*(times[part]["median"] for part in works)),
        **speeds("dispatch", there, times["dispatch"]["median"]),
        **speeds("combine", back, times["combine"]["median"]),
    }


def ratios(dispatch: float, compute: float, combine: float, layer: float) -> dict[str, float]:
    """The layer over its parts one after the other, and over the longer of computing and moving."""
    return {
        "layer_over_sum": round(layer / (dispatch + compute + combine), 3),
        "layer_over_max": round(layer / max(compute, dispatch + combine), 3),
    }


def speeds(part: str, megabytes: float, microseconds: float) -> dict[str, float]:
    """Of one direction, with the rows that have to travel over the busiest link."""
    return {
        f"{part}_megabytes": round(megabytes, 4),
        f"{part}_gigabytes_a_second": round(megabytes / microseconds * 1e3, 3),
    }
