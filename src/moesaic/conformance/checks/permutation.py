"""The order of tokens and the numbering of experts mean nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject


@final
@dataclass(frozen=True)
class TokenOrder(Check):
    """Tokens in another order give the same rows in that order, within the tolerance.

    Not bit for bit: a row may meet another tile, whose sums run in another order. Meant for F99, F100 and kin: a result
    that depends on where its row stands (the last block, a row that a tile boundary cuts).
    """

    name: ClassVar[str] = "token_order"
    meaning: ClassVar[str] = "permuting the tokens permutes the rows"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not case.problem.layout.has_routing:
            return "rows are in the order of their experts"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        given = subject.oracle.contents(case)
        order = torch.randperm(case.num_tokens, generator=torch.Generator().manual_seed(case.seed + 1))
        moved = replace(
            given, hidden_states=given.hidden_states[order], ids=given.ids[order], weights=given.weights[order]
        )
        prepared = subject.prepare(case)
        fed = subject.feed(case, contents=moved)
        got = subject.rows(case, fed, prepared)
        back = torch.zeros(case.num_tokens, got.shape[1], dtype=got.dtype)
        back[order[fed.live]] = got
        live = subject.feed(case).live
        subject.compare(case, back[live], subject.oracle.rows(case), "rows of permuted tokens")


@final
@dataclass(frozen=True)
class ExpertOrder(Check):
    """Experts numbered backwards, with their weights, constants and ids, give the same rows.

    Meant for F14, F23, F46, F76 and F78: something that is tied to the number of an expert, as a constant or a scale
    of expert 0 for all, the last expert skipped, an offset.
    """

    name: ClassVar[str] = "expert_order"
    meaning: ClassVar[str] = "numbering the experts otherwise changes nothing"
    with_all_constants: ClassVar[bool] = True

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not case.problem.layout.has_routing:
            return "rows are in the order of their experts"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        last = case.problem.num_experts - 1
        backwards = case.changed(activation=case.problem.activation.select(range(last, -1, -1)))
        given = subject.oracle.contents(case)
        renamed = replace(given, ids=torch.where(given.active, last - given.ids, given.ids))

        weights = subject.oracle.weights(case)

        def flipped(values: Tensor) -> Tensor:
            # Of the layer's tensors only the scale of the output norm is not stacked over experts.
            if values is weights.output_scale:
                return subject.place(values)
            # torch flips no e8m0 scales, but stacks them.
            return subject.place(torch.stack([values[e] for e in range(last, -1, -1)]))

        prepared = subject.prepare(backwards, placed(weights, flipped))
        got = subject.rows(backwards, subject.feed(backwards, contents=renamed), prepared)
        subject.compare(backwards, got, subject.oracle.rows(case), "rows of renumbered experts")
