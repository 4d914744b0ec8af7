"""Batches at the edge of what may come: no token, one token, one hot expert, one id twice, fewer slots than bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import CALM, NAN
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance


@final
@dataclass(frozen=True)
class ZeroTokens(Check):
    """No token at all, and (in the layouts without routing) capacity or gaps without a row. Meant for F25 and F79."""

    name: ClassVar[str] = "zero_tokens"
    meaning: ClassVar[str] = "no token gives no row, of the right width and dtype"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        for empty in (replace(case, num_tokens=0, padding=0.0), replace(case, padding=1.0)):
            fed = subject.feed(empty, NAN)
            got = subject.rows(empty, fed, prepared)  # raises on another shape or dtype
            if not case.problem.layout.has_routing or empty.num_tokens == 0:
                continue
            if case.problem.inactive_slots and bool((got != 0).any()):
                raise Nonconformance("rows of a batch without an active slot", "zeros", f"{float(got.abs().max())}")


@final
@dataclass(frozen=True)
class OneToken(Check):
    """One token alone, with four patterns of slots. Meant for F15 and F25: small batches take paths of their own."""

    name: ClassVar[str] = "one_token"
    meaning: ClassVar[str] = "one token equals the reference"
    with_whole_tiles: ClassVar[bool] = True

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        weights = subject.oracle.weights(case)
        for seed in range(4):
            alone = replace(case, num_tokens=1, padding=0.0, seed=seed)
            contents = subject.oracle.contents(alone)
            got = subject.rows(alone, subject.feed(alone, NAN, contents=contents), prepared)
            subject.compare(alone, got, subject.exact(alone, contents, weights), "the row of one token")


@final
@dataclass(frozen=True)
class HotExpert(Check):
    """Nearly every slot names one expert, first, last or between. Meant for F21, F102: capacity and tiles overrun."""

    name: ClassVar[str] = "hot_expert"
    meaning: ClassVar[str] = "all rows on one expert equal the reference"
    with_whole_tiles: ClassVar[bool] = True

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        experts = case.problem.num_experts
        for hot in sorted({0, experts // 2, experts - 1}):
            given = subject.oracle.contents(case)
            ids = torch.where(given.active, hot, given.ids)
            if not case.problem.duplicate_ids:
                ids[:, 1:] = -1 if case.problem.inactive_slots else given.ids[:, 1:]
            contents = replace(given, ids=ids)
            fed = subject.feed(case, NAN, contents=contents)
            wanted = subject.exact(case, contents, subject.oracle.weights(case))
            subject.compare(case, subject.rows(case, fed, prepared), wanted, f"rows that all go to expert {hot}")


@final
@dataclass(frozen=True)
class DuplicateIds(Check):
    """Every slot of a token names the same expert, with weights of its own. Meant for F26."""

    name: ClassVar[str] = "duplicate_ids"
    meaning: ClassVar[str] = "an expert named twice by a token counts twice"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not (case.problem.duplicate_ids and case.problem.layout.has_routing and case.problem.top_k > 1):
            return "no id comes twice in a row"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        given = subject.oracle.contents(case)
        for tokens in (1, case.num_tokens):
            few = replace(case, num_tokens=tokens)
            own = torch.arange(tokens, dtype=torch.int32) % case.problem.num_experts
            contents = replace(
                given,
                hidden_states=given.hidden_states[:tokens],
                ids=own.unsqueeze(1).expand(-1, case.problem.top_k).contiguous(),
                weights=given.weights[:tokens],
            )
            got = subject.rows(few, subject.feed(few, CALM, contents=contents), prepared)
            wanted = subject.exact(few, contents, subject.oracle.weights(case))
            subject.compare(few, got, wanted, "rows whose slots name one expert")


@final
@dataclass(frozen=True)
class FewerSlots(Check):
    """A batch with fewer slots than `Problem.top_k` is served: K is read from the batch. Meant for F22."""

    name: ClassVar[str] = "fewer_slots"
    meaning: ClassVar[str] = "a batch may have fewer slots a token than the problem was bound with"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not case.problem.layout.has_routing or case.problem.top_k == 1:
            return "there is no smaller number of slots"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        given = subject.oracle.contents(case)
        slots = case.problem.top_k // 2
        contents = replace(given, ids=given.ids[:, :slots].contiguous(), weights=given.weights[:, :slots].contiguous())
        got = subject.rows(case, subject.feed(case, NAN, contents=contents), subject.prepare(case))
        wanted = subject.exact(case, contents, subject.oracle.weights(case))
        subject.compare(case, got, wanted, f"rows with {slots} slots a token")
