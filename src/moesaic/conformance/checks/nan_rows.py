"""NaN and infinity that a model produced stay where they are, and are seen there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check, moves_constants_only
from moesaic.conformance.contents import Contents
from moesaic.conformance.feeding import CALM, expert_of_row
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance
from moesaic.layouts import PaddedStandard
from moesaic.quant import Plain
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class NanRows(Check):
    """One element of a token, a router weight, a bias or a weight of a live expert is NaN, or a token is infinite.

    What the reference makes NaN of it comes back as NaN, what it makes infinite is not finite, and all other rows keep
    their bits. Meant for F06 (a clamp that turns NaN into its limit), F19, F36 and F50 (a scale over all rows, a NaN
    that is stored or taken as zero).
    """

    name: ClassVar[str] = "nan_rows"
    meaning: ClassVar[str] = "NaN in live rows, weights and biases reaches what depends on it and nothing else"
    with_all_constants: ClassVar[bool] = True

    @override
    def run(self, subject: Subject, case: Case) -> None:
        given = subject.oracle.contents(case)
        tokens = torch.nonzero(given.active.any(1)).flatten().tolist() if case.padding < 1 else []
        prepared = subject.prepare(case)
        calm = subject.rows(case, subject.feed(case, CALM), prepared)
        for token in dict.fromkeys((tokens[0], tokens[-1])) if tokens else ():
            struck = _with_element(given, token, math.nan)
            wanted = self._struck(subject, case, given, token)
            got = subject.rows(case, subject.feed(case, CALM, contents=struck), prepared)
            _spreads(got, wanted, "a row with a NaN in it")
            if isinstance(case.problem.scheme.inputs, Plain):
                subject.same(case, got[~wanted], calm[~wanted], "rows beside a row with a NaN in it")
            else:  # a scale that rows share may be another without the value that became NaN
                exact = subject.exact(case, struck, subject.oracle.weights(case))
                subject.compare(case, got[~wanted], exact[~wanted], "rows beside a row with a NaN in it")
        if tokens and not moves_constants_only(subject.backend, case):
            self._others(subject, case, tokens[-1], prepared, calm)

    def _others(self, subject: Subject, case: Case, token: int, prepared: Any, calm: Tensor) -> None:
        """The same of what is no element of a token."""
        given, weights = subject.oracle.contents(case), subject.oracle.weights(case)
        shares_scale = not isinstance(case.problem.scheme.inputs, Plain)
        if case.problem.layout.has_routing and not (shares_scale and case.problem.weight_on_input):
            slots = given.weights.clone()
            slots[token, int(given.active[token].nonzero()[0])] = math.nan
            contents = replace(given, weights=slots)
            got = subject.rows(case, subject.feed(case, CALM, contents=contents), prepared)
            wanted = torch.arange(len(got)) == _live_row(case, given, token)
            _spreads(got, wanted, "a row with a router weight of NaN")
            subject.same(case, got[~wanted], calm[~wanted], "rows beside one with a router weight of NaN")
        if not shares_scale:
            contents = _with_element(given, token, math.inf)
            got = subject.rows(case, subject.feed(case, CALM, contents=contents), prepared)
            wanted, exact = self._struck(subject, case, given, token), subject.exact(case, contents, weights)
            lost = got.isfinite() & ~exact.isfinite()
            if bool(lost.any()):
                raise Nonconformance("a row with an infinite value", "no finite number", f"{int(lost.sum())} of them")
            subject.same(case, got[~wanted], calm[~wanted], "rows beside one with an infinite value")
        expert = int(given.ids[token][given.active[token]][0])
        wanted = _rows_of(case, given, expert)
        for name, broken in _broken(weights, expert):
            fed = subject.feed(case, CALM)
            got = subject.rows(case, fed, subject.prepare(case, placed(broken, subject.place)))
            _spreads(
                got, wanted, f"a row of an expert with NaN in {name}", column=0 if name == "its last bias" else None
            )
            if not shares_scale:
                subject.same(case, got[~wanted], calm[~wanted], f"rows of experts beside one with NaN in {name}")

    @staticmethod
    def _struck(subject: Subject, case: Case, given: Contents, token: int) -> Tensor:
        """Bool over the live rows: those that come from `token`."""
        fed = subject.feed(case, CALM, contents=_with_element(given, token, math.nan))
        return fed.batch.rows.cpu()[fed.live].isnan().any(-1)


def _with_element(given: Contents, token: int, value: float) -> Contents:
    hidden = given.hidden_states.clone()
    hidden[token, token % hidden.shape[1]] = value
    return replace(given, hidden_states=hidden)


def _broken(weights: ExpertWeights, expert: int) -> Iterator[tuple[str, ExpertWeights]]:
    """The weights with one NaN in a tensor of `expert`, of those that can hold one."""
    if weights.gate_up_bias is not None:
        yield "its first bias", replace(weights, gate_up_bias=_with_nan(weights.gate_up_bias, expert))
    if weights.down_bias is not None:
        yield "its last bias", replace(weights, down_bias=_with_nan(weights.down_bias, expert))
    if isinstance(weights.gate_up.format, Plain):
        stored = replace(weights.gate_up, data=_with_nan(weights.gate_up.data, expert))
        yield "its weights", replace(weights, gate_up=stored)


def _with_nan(values: Tensor, expert: int) -> Tensor:
    broken = values.clone()
    broken[expert].view(-1)[0] = math.nan
    return broken


def _live_row(case: Case, given: Contents, token: int) -> int:
    """Where `token` is among the live rows of a layout with routing."""
    live = given.active.any(1) if case.fed == PaddedStandard() else torch.ones(len(given.ids), dtype=torch.bool)
    return int(live[:token].sum())


def _rows_of(case: Case, given: Contents, expert: int) -> Tensor:
    """Bool over the live rows: those to which `expert` contributes."""
    if not case.fed.has_routing:
        return expert_of_row(case, given) == expert
    rows = ((given.ids == expert) & given.active).any(1)
    return rows[given.active.any(1)] if case.fed == PaddedStandard() else rows


def _spreads(got: Tensor, struck: Tensor, what: str, *, column: int | None = None) -> None:
    """Raise Nonconformance unless the struck rows are NaN in `column`, by default in all of them."""
    rows = got[struck] if column is None else got[struck][:, column]
    if not bool(rows.isnan().all()):
        where = "every column" if column is None else f"column {column}"
        raise Nonconformance(what, f"NaN in {where}", f"{int((~rows.isnan()).sum())} numbers")
