"""What a row says of its answer and of its cell, beside the times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from layers.cells import Cell
from layers.clock import Call
from layers.contender import Contender
from layers.exact import Activation, exact, head, relative_error
from layers.floor import floor_microseconds
from layers.report import finite
from layers.traffic import busiest, touched
from torch import Tensor

from moesaic import ExpertWeights, Problem, StandardBatch

Wanted = dict[Activation, Tensor]
"""Of a cell's first tokens in float32."""


def judged(contender: Contender, call: Call, expected: Tensor | None) -> dict[str, Any]:
    """`error` against what is expected, and what is `wrong`, if anything is. Raises what the call raises."""
    got = call()
    if expected is None or contender.tolerance is None:
        return {"error": None}
    error = relative_error(got, expected)  # which waits for the device
    found: dict[str, Any] = {"error": finite(error)}
    if not error <= contender.tolerance:  # a NaN is wrong too
        found["wrong"] = f"the error is {error:.3g}, allowed is {contender.tolerance}"
    elif contender.own and not torch.equal(got, call()):
        found["wrong"] = "other bits the second time"
    return found


@final
@dataclass(eq=False)
class Watched:
    """A call whose last answer is kept: inside a graph that is the memory which every replay fills."""

    call: Call
    answer: Tensor | None = None

    def __call__(self) -> Tensor:
        """The answer, kept."""
        self.answer = self.call()
        return self.answer


def judged_again(contender: Contender, watched: Watched, expected: Tensor | None) -> dict[str, Any]:
    """What is `wrong` with the answer that was timed last: a graph may compute less than the calls it was made of."""
    if expected is None or contender.tolerance is None or watched.answer is None:
        return {}
    error = relative_error(watched.answer, expected)
    return {} if error <= contender.tolerance else {"wrong": f"the error of what was timed is {error:.3g}"}


def expected(
    contender: Contender, batch: StandardBatch, weights: ExpertWeights, tokens: int, known: Wanted
) -> Tensor | None:
    """The first tokens' output with the contender's activation; None if its answer is not compared."""
    if contender.tolerance is None:
        return None
    if contender.activation not in known:
        known[contender.activation] = exact(head(batch, tokens), weights, contender.activation)
    return known[contender.activation]


def facts(problem: Problem, tokens: int, batches: list[StandardBatch]) -> dict[str, Any]:
    """The same for all rows of a cell."""
    experts = touched(batches)
    return {
        "floor_microseconds": round(floor_microseconds(problem, tokens, experts), 4),
        "touched_experts": round(experts, 1),
        "busiest_expert_rows": round(busiest(batches), 1),
    }


def figures(cell: Cell, name: str, times: Sequence[float], flops: float) -> dict[str, Any]:
    """What a row begins with. `times`: sorted."""
    middle = statistics.median(times)
    return {
        **vars(cell),
        "impl": name,
        "microseconds": round(middle, 2),
        "lowest": round(times[0], 2),
        "highest": round(times[-1], 2),
        "teraflops": round(flops / middle / 1e6, 1),
    }
