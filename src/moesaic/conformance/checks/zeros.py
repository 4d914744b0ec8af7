"""Nothing but zeros: a token that is all zero, and an expert whose weights are, with rows of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.contents import plain_weights_of
from moesaic.conformance.feeding import NAN
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class Zeros(Check):
    """The first live token is zero, and so are both projections of the expert in its first active slot.

    Meant for F50: a dynamic scale of zero, by which zeros are divided, and a scale that is stored as its reciprocal.
    """

    name: ClassVar[str] = "zeros"
    meaning: ClassVar[str] = "a token of zeros and an expert of zeros answer as the reference does"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        given = subject.oracle.contents(case)
        if case.padding == 1 or not bool(given.active.any()):
            return
        token = int(given.active.any(1).nonzero()[0])
        expert = int(given.ids[token][given.active[token]][0])
        hidden = given.hidden_states.clone()
        hidden[token] = 0.0
        contents = replace(given, hidden_states=hidden)
        weights = _without(plain_weights_of(case), expert).quantize(case.problem.scheme.weights)
        prepared = subject.prepare(case, placed(weights, subject.place))
        got = subject.rows(case, subject.feed(case, NAN, contents=contents), prepared)
        subject.compare(case, got, subject.exact(case, contents, weights), "rows with a token and an expert of zeros")


def _without(weights: ExpertWeights, expert: int) -> ExpertWeights:
    """The same weights; those of the projections of `expert` are zero, its biases stay."""

    def zeroed(values: Tensor) -> Tensor:
        less = values.clone()
        if less.ndim == 3:
            less[expert] = 0.0
        return less

    return placed(weights, zeroed)
