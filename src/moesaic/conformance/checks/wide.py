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
from moesaic.conformance.contents import Contents
from moesaic.conformance.feeding import NAN
from moesaic.conformance.figures import excess
from moesaic.conformance.noise import Deviation, deviation
from moesaic.conformance.subject import Subject, worst_row
from moesaic.conformance.tolerance import floor, tolerance
from moesaic.errors import Nonconformance
from moesaic.problem import Problem
from moesaic.quant import Plain

ROWS = (1e2, 1.0, 1e4, 1e3, 1e-3)
"""What the values of tokens are multiplied by, in turn; every exponential of a float32 overflows at 1e4."""

ROUNDED_ROWS = ((1e3,), (1e-3,))
"""The same where inputs are rounded, call by call: one scale may serve all tokens of a call."""

WEIGHTS = (0.0, 2.5, -0.7, 1e3)
"""Router weights, in turn: of a slot that counts for nothing, scaled by a factor, negative, and large."""

NARROW = 8.0
"""The largest router weight in float16, whose largest value is 65504; its rows keep their size too."""

SMALL, SMALL_ON_INPUT = 1e-3, 0.03
"""All router weights of every fifth token, and where they make float16 rows so small that these lose their bits."""

BOUNDED = Deviation(0.3, math.inf, 1.0)
"""Allowed of bfloat16 where an activation is bounded. The error of a product grows with its rows and what such an
activation makes of it does not: of rows of 1e4 limits of 2 to 7 leave an rms error of up to 0.06, and of 0.27 in a row.
What is left is the share of values that an error takes over a limit, so other noise allows its square root."""

BOUNDED_NOISE = 4.6e-3
"""The rms of the noise for which `BOUNDED` is."""


@final
@dataclass(frozen=True)
class WideValues(Check):
    """Tokens of 1e-3 to 1e4 side by side; then ordinary tokens with the router weights 0, 2.5, -0.7, 1e3 and 1e-3.

    Where inputs are rounded all tokens are of 1e3, and then of 1e-3. Meant for F06 (a sigmoid whose exponential
    overflows), F18, F37, F40 and F50: a weight of zero taken for no slot or divided by, a negative one lost, small
    values flushed to zero.
    """

    name: ClassVar[str] = "wide_values"
    meaning: ClassVar[str] = "rows of 1e-3 to 1e4 and router weights of any size and sign equal the reference"
    with_all_constants: ClassVar[bool] = True

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if case.problem.weight_on_input and not isinstance(case.problem.scheme.inputs, Plain):
            return "one scale would serve rows of every size"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, given = subject.prepare(case), subject.oracle.contents(case)
        for factors in _factors(case.problem):
            self._compare(subject, case, prepared, _of_size(given, factors), "rows of every size")
        if case.problem.layout.has_routing:
            weighted = replace(given, weights=_weights(case.problem, given.weights))
            self._compare(subject, case, prepared, weighted, "router weights of every size")

    def _compare(self, subject: Subject, case: Case, prepared: Any, contents: Contents, what: str) -> None:
        got = subject.rows(case, subject.feed(case, NAN, contents=contents), prepared)
        wanted = subject.exact(case, contents, subject.oracle.weights(case))
        makes_wide = what.startswith("rows") or case.problem.weight_on_input
        own = wanted.pow(2).mean(-1, keepdim=True).sqrt()
        size = torch.where(own > 0, own, 1.0)  # rows count alike, whatever their size
        allowed, found = (
            _allowed(case.problem, len(wanted), makes_wide=makes_wide),
            deviation(got / size, wanted / size),
        )
        if found.exceeds(allowed):
            limits, figures = excess(found, allowed)
            raise Nonconformance(what, limits, f"{figures}; {worst_row(got, wanted)}")


def _factors(problem: Problem) -> tuple[tuple[float, ...], ...]:
    if problem.dtype == torch.float16:  # whose range ends at 65504 and 6e-5
        return ()
    return (ROWS,) if isinstance(problem.scheme.inputs, Plain) else ROUNDED_ROWS


def _of_size(given: Contents, factors: tuple[float, ...]) -> Contents:
    each = torch.tensor(factors)[torch.arange(len(given.ids)).unsqueeze(1) % len(factors)]
    return replace(given, hidden_states=_times(given.hidden_states, each))


def _weights(problem: Problem, drawn: Tensor) -> Tensor:
    tokens, slots = drawn.shape
    token, narrow = torch.arange(tokens).unsqueeze(1), problem.dtype == torch.float16
    chosen = torch.tensor(WEIGHTS).clamp(max=NARROW) if narrow else torch.tensor(WEIGHTS)
    weights = chosen[(token + torch.arange(slots)) % len(chosen)]
    small = SMALL_ON_INPUT if narrow and problem.weight_on_input else SMALL
    weights = torch.where(token % 5 == 4, small * drawn, weights)
    # Of two slots of one expert the norm makes opposites, whose sum is all rounding.
    return weights.abs() if problem.weight_on_input and problem.output_norm is not None else weights


def _allowed(problem: Problem, num_rows: int, *, makes_wide: bool) -> Deviation:
    columns = max(problem.hidden_size, problem.intermediate_size)
    if makes_wide and not grows_with_its_input(problem.activation):
        share = (floor(problem.dtype, problem.scheme, columns).rms / BOUNDED_NOISE) ** 0.5
        return BOUNDED.times(share, share, share)
    return tolerance(problem.dtype, problem.scheme, columns, num_rows)


def grows_with_its_input(activation: Activation) -> bool:
    """Whether a hundred times the input makes a hundred times the answer or more, of the gate and of up."""
    rows = torch.randn(64, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    alone = activation.select([0]) if activation.per_expert() else activation
    small, large = (float(alone(size * rows).pow(2).mean()) for size in (1e2, 1e4))
    return large >= small * (0.5 * (1e4 if activation.gated else 1e2)) ** 2


def _times(values: Tensor, factors: Tensor) -> Tensor:
    return (values.float() * factors).to(values.dtype) if values.dtype != torch.float64 else values * factors
