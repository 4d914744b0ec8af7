"""Live values and router weights far from the size of one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import Activation
from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import NAN
from moesaic.conformance.figures import excess
from moesaic.conformance.noise import Deviation, deviation
from moesaic.conformance.subject import Subject, worst_row
from moesaic.conformance.tolerance import tolerance
from moesaic.errors import Nonconformance
from moesaic.problem import Problem
from moesaic.quant import Plain

ROWS = (1e2, 1.0, 1e4, 1e3)
"""What the values of tokens are multiplied by, in turn; every exponential of a float32 overflows at 1e4."""

WEIGHTS = (0.0, 2.5, -0.7, 1e3)
"""Router weights, in turn: of a slot that counts for nothing, scaled by a factor, negative, and large."""

NARROW = 8.0
"""The largest router weight in float16, whose largest value is 65504; its rows keep their size too."""


BOUNDED = Deviation(0.3, math.inf, 1.0)
"""Allowed where an activation is bounded. The error of a product grows with its rows and what such an activation makes
of it does not: of rows of 1e4 limits of 2 to 7 leave an rms error of up to 0.06 in bfloat16, and of 0.27 in a row."""


@final
@dataclass(frozen=True)
class WideValues(Check):
    """Tokens of 1, 1e2, 1e3 and 1e4, and slots with the weights 0, 2.5, -0.7 and 1e3, side by side.

    Where inputs are rounded all tokens are of 1e3, since one scale may serve them. Meant for F06 (a sigmoid whose
    exponential overflows), F18, F37 and F40: a weight of zero taken for no slot or divided by, a negative one lost.
    """

    name: ClassVar[str] = "wide_values"
    meaning: ClassVar[str] = "rows of 1e2 to 1e4 and router weights of any size and sign equal the reference"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if case.problem.weight_on_input and not isinstance(case.problem.scheme.inputs, Plain):
            return "one scale would serve rows of every size"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        given, narrow = subject.oracle.contents(case), case.problem.dtype == torch.float16
        rows = torch.tensor(ROWS if isinstance(case.problem.scheme.inputs, Plain) else ROWS[-1:])
        weights = torch.tensor(WEIGHTS).clamp(max=NARROW) if narrow else torch.tensor(WEIGHTS)
        if case.problem.weight_on_input and case.problem.output_norm is not None:
            weights = weights.abs()  # of two slots of one expert the norm makes opposites, whose sum is all rounding
        tokens, slots = given.ids.shape
        token = torch.arange(tokens).unsqueeze(1)
        contents = replace(
            given,
            hidden_states=given.hidden_states if narrow else _times(given.hidden_states, rows[token % len(rows)]),
            weights=weights[(token + torch.arange(slots)) % len(weights)],
        )
        got = subject.rows(case, subject.feed(case, NAN, contents=contents), subject.prepare(case))
        wanted = subject.exact(case, contents, subject.oracle.weights(case))
        allowed, found = _allowed(case.problem, len(wanted)), deviation(got, wanted)
        if found.exceeds(allowed):
            limits, figures = excess(found, allowed)
            raise Nonconformance("rows of every size", limits, f"{figures}; {worst_row(got, wanted)}")


def _allowed(problem: Problem, num_rows: int) -> Deviation:
    columns = max(problem.hidden_size, problem.intermediate_size)
    grows = grows_with_its_input(problem.activation)
    return tolerance(problem.dtype, problem.scheme, columns, num_rows) if grows else BOUNDED


def grows_with_its_input(activation: Activation) -> bool:
    """Whether a hundred times the input makes a hundred times the answer or more, of the gate and of up."""
    rows = torch.randn(64, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    alone = activation.select([0]) if activation.per_expert() else activation
    small, large = (float(alone(size * rows).pow(2).mean()) for size in (1e2, 1e4))
    return large >= small * (0.5 * (1e4 if activation.gated else 1e2)) ** 2


def _times(values: Tensor, factors: Tensor) -> Tensor:
    return (values.float() * factors).to(values.dtype) if values.dtype != torch.float64 else values * factors
