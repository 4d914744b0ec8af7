"""What it costs to count what each expert gets: a layer without, as `Recorded` does it, and by a launch of its own.

The three are timed in turn, so that all of them see the same machine; what they counted is compared before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from dispatching.equality import WrongAnswerError, layer
from dispatching.shapes import Job
from dispatching.timing import captured, in_turn
from torch import Tensor

from moesaic import Dispatcher
from moesaic.batches import Batch
from moesaic.dispatch.all_or_none import all_or_none
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.recorded import Recorded


def counting(
    dispatcher: Dispatcher[Any], experts: Callable[[Batch], Tensor], job: Job, calls: list[Call], rounds: int
) -> dict[str, Any]:
    """Microseconds of a layer each way and what is added, of the slowest rank; all ranks call it together.

    By replays of CUDA graphs unless the dispatcher waits on the host. Raises FleetError on all ranks if one of them
    counts something else than its tokens name.
    """
    graph = calls[0][0].is_cuda and not dispatcher.synchronises
    recorder = LoadRecorder(1, job.shape.num_experts, job.ranks.device)
    recorded = Recorded(dispatcher, recorder, 0)

    def launched(given: Call) -> Tensor:
        batch, receipt = dispatcher.dispatch(*given)
        recorder.record(0, given[1].topk_ids)
        return dispatcher.combine(experts(batch), receipt)

    ways: dict[str, Callable[[Call], Tensor]] = {
        "without": partial(layer, dispatcher, experts),
        "recorded": partial(layer, recorded, experts),
        "launched": launched,
    }
    wrong = [_miscounted(name, ways[name], recorder, calls, graph=graph) for name in ("recorded", "launched")]
    with all_or_none(job.ranks, "what a layer counts", "no time of it is taken"):
        if any(wrong):
            raise WrongAnswerError("; ".join(filter(None, wrong)))
    more = 4 if graph else 1  # where a layer is a few microseconds
    works = {name: [partial(way, given) for given in calls] * more for name, way in ways.items()}
    every = in_turn(works, job.ranks, rounds, graph=graph)
    return {"rounds": rounds, **added({name: list(map(max, own)) for name, own in every.items()})}


def added(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The median of each way, and by how many percent of `without` the others are above it.

    That is the median of the differences within a round, whose quartiles say how far apart the rounds are.
    """
    without = times["without"]
    found: dict[str, Any] = {name: round(statistics.median(own), 2) for name, own in times.items()}
    for name in ("recorded", "launched"):
        each = zip(times[name], without, strict=True)
        more = [100 * (one - other) / statistics.median(without) for one, other in each]
        low, middle, high = statistics.quantiles(more, n=4, method="inclusive") if len(more) > 1 else more * 3
        found |= {f"{name}_percent": round(middle, 2), f"{name}_quartiles": [round(low, 2), round(high, 2)]}
    return found


def _miscounted(
    name: str, way: Callable[[Call], Tensor], recorder: LoadRecorder, calls: list[Call], *, graph: bool
) -> str:
    """What is wrong with what one run of all calls counts, a replay if they are in a graph; empty if nothing is."""

    def run() -> None:
        for given in calls:
            way(given)

    replay = captured(run)[0].replay if graph else run
    before = recorder.read()
    replay()
    counts = recorder.read().since(before).counts[0]
    ids = torch.cat([routing.topk_ids.flatten() for _, routing in calls]).cpu()
    if torch.equal(counts, torch.bincount(ids, minlength=recorder.num_experts)):
        return ""
    return f"{name}: {counts.sum()} slots are counted of {len(ids)}, or those of other experts"
