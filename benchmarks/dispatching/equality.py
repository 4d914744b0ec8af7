"""Whether a dispatcher's layer is that of one rank; asked before anything is timed, and answered alike on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from dispatching.exact_experts import ExactExperts, exact_call
from dispatching.shapes import Job
from dispatching.timing import captured, of_all_ranks
from torch import Tensor

from moesaic import Dispatcher, Routing, StandardBatch
from moesaic.batches import Batch
from moesaic.dispatch.all_or_none import all_or_none
from moesaic.dispatch.fleet import Call

TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.003, torch.float32: 1e-5}
"""The most that a token's output may differ, over its norm: a few of the dtype's roundings, one for each rank."""


class WrongAnswerError(Exception):
    """What a dispatcher got wrong on this rank."""


def layer(dispatcher: Dispatcher[Any], experts: Callable[[Batch], Tensor], given: Call) -> Tensor:
    """Dispatch, experts, combine."""
    batch, receipt = dispatcher.dispatch(*given)
    return dispatcher.combine(experts(batch), receipt)


def compared(
    dispatcher: Dispatcher[Any], experts: Callable[[Batch], Tensor], job: Job, held: Sequence[int], calls: list[Call]
) -> dict[str, Any]:
    """The figures of the comparison with one rank, whose tokens are rounded as the dispatcher says it rounds them.

    `held`: the model's experts that this rank has. `error`: of the worst token of all ranks; `same_bits`: the share of
    tokens that have the bits of one rank. Raises FleetError on all ranks if one of them finds a wrong answer.
    """
    given, faults = calls[0], []
    exact, numbers = ExactExperts.of(job), exact_call(given, seed=job.ranks.rank)
    if not torch.equal(layer(dispatcher, exact.select(held), numbers), exact(StandardBatch(*numbers))):
        faults.append("with experts that are exact it has other bits than one rank")
    rounded = dispatcher.rounding.round_trip(given[0])
    wanted, got = job.whole(StandardBatch(rounded, given[1])), layer(dispatcher, experts, given)
    error = ((got.float() - wanted.float()).norm(dim=1) / wanted.float().norm(dim=1)).max().item()
    if not error <= TOLERANCE[job.dtype]:
        faults.append(f"a token differs from one rank by {error:.2g} of its norm, allowed is {TOLERANCE[job.dtype]}")
    if not torch.equal(got, layer(dispatcher, experts, given)):
        faults.append("another answer the second time")
    if got.is_cuda and not dispatcher.synchronises:
        faults += _replayed(dispatcher, experts, calls)
    with all_or_none(job.ranks, "the layer against one rank", "no time of it is taken"):
        if faults:
            raise WrongAnswerError("; ".join(faults))
    same = (got == wanted).all(1).double().mean().item()
    errors, shares = of_all_ranks([error, same], job.ranks)
    return {"exact": True, "error": float(f"{max(errors):.3g}"), "same_bits": round(sum(shares) / len(shares), 4)}


def _replayed(dispatcher: Dispatcher[Any], experts: Callable[[Batch], Tensor], calls: list[Call]) -> list[str]:
    """A graph replayed with other tokens and another routing must have the bits of a call that was not captured."""
    rows, routing = calls[0][0].clone(), Routing(calls[0][1].topk_ids.clone(), calls[0][1].topk_weights.clone())
    graph, output = captured(lambda: layer(dispatcher, experts, (rows, routing)))
    faults = []
    for number in (-1, 0):
        other = calls[number]
        rows.copy_(other[0])
        routing.topk_ids.copy_(other[1].topk_ids)
        routing.topk_weights.copy_(other[1].topk_weights)
        graph.replay()
        if not torch.equal(output, layer(dispatcher, experts, other)):
            faults.append(f"a replay of a graph with the tokens of call {number} that differs from a call")
    return faults
