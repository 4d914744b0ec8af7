"""No factor is off by a little: over many rows rounding cancels, and a systematic error stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.contents import Contents
from moesaic.conformance.feeding import CALM, expert_of_row
from moesaic.conformance.slope import column_slopes, row_slopes
from moesaic.conformance.subject import Subject
from moesaic.quant import Format, Plain

ROWS = 128
"""Rows of each expert: with 40 columns between the projections, 0.3 % of one expert then shows in bfloat16."""

MOST_ROWS = 1024
"""Rows in all, so that the many experts of a large layer get fewer each."""


@final
@dataclass(frozen=True)
class Systematic(Check):
    """Many tokens with all their slots, then as many with one slot each, so that a row is of one expert.

    Meant for F37, F44 to F46 and F49 where they are small: an answer times 1.005, router weights that are cut to
    bfloat16, a scale or one expert off by a percent, all of which hide in the rounding of 16-bit rows.
    """

    name: ClassVar[str] = "systematic"
    meaning: ClassVar[str] = "no share of all rows, of one expert, one column or one row is off beyond rounding"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if case.problem.dtype.itemsize > 2 and isinstance(case.problem.scheme.inputs, Plain):
            return "such an error is far above the rounding of float32"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        tokens = min(ROWS * case.problem.num_experts, MOST_ROWS)
        many = replace(case, num_tokens=tokens, padding=0.0)
        prepared, given = subject.prepare(case), subject.oracle.contents(many)
        for contents, what in ((given, "many rows"), (_alone(many, given), "rows of one expert each")):
            got = subject.rows(many, subject.feed(many, CALM, contents=contents), prepared)
            wanted = subject.exact(many, contents, subject.oracle.weights(case))
            subject.compare(many, got, wanted, what)
        problem, owner = case.problem, _owner(many, contents)
        row_slopes(problem, got, wanted, owner).judge("the rows of expert {}")
        rows = row_slopes(problem, got, wanted, torch.arange(len(got)))
        replace(rows, allowed=rows.allowed + code_step(problem.scheme.inputs)).judge("row {}")
        column_slopes(problem, got, wanted).judge("column {}")


def code_step(stored: Format) -> float:
    """The largest step from one code to the next, as a share of the smaller value; 0 where none is rounded.

    Where inputs are rounded the one value that makes most of a row may be one code off: a scale that is multiplied by
    its reciprocal, or a value stored in bfloat16 before, puts it on the other side of a boundary.
    """
    if isinstance(stored, Plain):
        return 0.0
    read = stored.round_trip(torch.linspace(1.0, 0.5, 2048).unsqueeze(0))[0]
    return float(((read[:-1] - read[1:]).abs() / torch.minimum(read[:-1], read[1:])).max())


def _alone(case: Case, given: Contents) -> Contents:
    """Token t at expert t modulo E in its slot t modulo K; the other slots are inactive, or else have the weight 0."""
    tokens, slots = given.ids.shape
    token, slot = torch.arange(tokens).unsqueeze(1), torch.arange(slots)
    own = slot == token % slots
    ids = (token + slot - token % slots) % case.problem.num_experts
    if case.problem.inactive_slots:
        ids = torch.where(own, ids, -1)
    return replace(given, ids=ids.to(torch.int32), weights=torch.where(own, given.weights, 0.0))


def _owner(case: Case, contents: Contents) -> Tensor:
    """The expert of each live row."""
    if case.problem.layout.has_routing:
        return torch.arange(len(contents.ids)) % case.problem.num_experts
    return expert_of_row(case, contents).long()
