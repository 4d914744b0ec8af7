"""The marker layer: every expert answers in a column of its own, so the output is the table of applied weights."""

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
from moesaic.conformance.feeding import Poison
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance
from moesaic.quant import Plain
from moesaic.weights import ExpertWeights

FIRST = 2.0
"""What every column of the first projection holds, so that no activation of the package answers zero."""

GARBAGE = Poison(0.5, rotation=0)
"""An ordinary weight behind every kind of id that means nobody, so that a slot which is counted shows its weight."""


@final
@dataclass(frozen=True)
class ExactlyOnce(Check):
    """Expert e answers in column e (modulo H) with the same number, so the output says who contributed how much.

    Meant for F12, F14, F15, F17, F26, F31, F32 and F37: a weight applied twice or never, or on the wrong side; a slot
    lost, doubled or given to another expert; an inactive slot that is counted.
    """

    name: ClassVar[str] = "exactly_once"
    meaning: ClassVar[str] = "each active slot contributes once with its weight, each inactive one nothing"
    with_all_constants: ClassVar[bool] = True
    with_many_experts: ClassVar[bool] = True

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return _markable(case) or Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        hidden = case.problem.hidden_size
        given = subject.oracle.contents(case)
        contents = replace(given, hidden_states=torch.ones_like(given.hidden_states))
        weights = marker_weights(case, torch.eye(hidden)[torch.arange(case.problem.num_experts) % hidden])
        prepared = subject.prepare(case, placed(weights, subject.place))
        got = subject.rows(case, subject.feed(case, GARBAGE, contents=contents), prepared).double()
        wanted = subject.exact(case, contents, weights)
        wrong = (got - wanted).abs() > 4 * torch.finfo(case.problem.dtype).eps * (wanted.abs() + 1)
        if bool((wrong | got.isnan()).any()):
            row, column = (int(i) for i in torch.nonzero(wrong | got.isnan())[0])
            owners = [e for e in range(case.problem.num_experts) if e % hidden == column]
            raise Nonconformance(
                f"what the experts {owners[:3]} contribute to row {row}",
                f"{float(wanted[row, column]):.6g}",
                f"{float(got[row, column]):.6g}",
            )


@final
@dataclass(frozen=True)
class Float32Sum(Check):
    """Two experts answer 1 and -1 with the weights 1 + 2**-12 and 1: the sum is 2**-12 of the answer, or lost.

    In the first two slots, then in the first and the last. Meant for F37: router weights that went through bfloat16 or
    float16, a combine that is not in float32, and one in passes over the slots that is rounded between them.
    """

    name: ClassVar[str] = "float32_sum"
    meaning: ClassVar[str] = "router weights and the sum over slots are float32"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        problem = case.problem
        if not problem.layout.has_routing or problem.weight_on_input:
            return "no weighted sum of results"
        if problem.num_experts < 2 or problem.top_k < 2:
            return "a sum needs two slots and two experts"
        if problem.activation.per_expert():
            return "the experts' answers differ by their constants"
        return _markable(case) or Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        problem, small = case.problem, replace(case, num_tokens=5)
        columns = torch.zeros(problem.num_experts, problem.hidden_size)
        columns[0], columns[-1] = 1.0, -1.0
        weights = marker_weights(case, columns)
        prepared = subject.prepare(case, placed(weights, subject.place))
        for second in sorted({1, problem.top_k - 1}):
            contents = _opposites(small, subject.oracle.contents(small), second)
            got = subject.rows(small, subject.feed(small, GARBAGE, contents=contents), prepared).double()
            wanted = subject.exact(small, contents, weights)
            if not bool(((got - wanted).abs() <= 0.05 * wanted.abs()).all()):
                largest = float(got[(got - wanted).abs().argmax() // got.shape[1]].abs().max())
                raise Nonconformance(
                    f"(1 + 2**-12) times the answer of slot 0 minus that of slot {second}",
                    f"{float(wanted.abs().max()):.4g} (in float32: only the sum is rounded to {problem.dtype})",
                    f"{largest:.4g}",
                )


def _opposites(case: Case, given: Contents, second: int) -> Contents:
    """Tokens of ones; the first expert in slot 0, the last in slot `second`, the others inactive or of weight 0."""
    ids, weights = torch.full_like(given.ids, -1), torch.zeros_like(given.weights)
    last = case.problem.num_experts - 1
    if not case.problem.inactive_slots:  # experts between the two, so that no token names one twice
        ids[:] = 1 + torch.arange(ids.shape[1], dtype=torch.int32) % max(1, last - 1)
    ids[:, 0], ids[:, second], weights[:, 0], weights[:, second] = 0, last, 1 + 2.0**-12, 1.0
    return Contents(torch.ones_like(given.hidden_states), ids, weights)


def marker_weights(case: Case, columns: Tensor) -> ExpertWeights:
    """Plain weights for rows of ones: every first projection is FIRST, and expert e answers act(FIRST) * columns[e].

    Only column 0 of both projections is filled, so that nothing is rounded but the activation's result.
    """
    problem = case.problem
    gate_up = torch.zeros(problem.num_experts, problem.width, problem.hidden_size, dtype=problem.dtype)
    gate_up[:, :, 0] = FIRST
    down = torch.zeros(problem.num_experts, problem.hidden_size, problem.intermediate_size, dtype=problem.dtype)
    down[:, :, 0] = columns.to(problem.dtype)
    zeros = (torch.zeros_like(gate_up[:, :, 0]), torch.zeros_like(down[:, :, 0])) if problem.bias else (None, None)
    return ExpertWeights.plain(gate_up, down, gate_up_bias=zeros[0], down_bias=zeros[1])


def _markable(case: Case) -> str | None:
    if case.problem.output_norm is not None:
        return "the output norm hides what an expert answered"
    return None if isinstance(case.problem.scheme.weights, Plain) else "the marker layer is not quantized"
