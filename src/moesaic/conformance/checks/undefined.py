"""What nobody defined changes no bit of a live row: undefined rows, weights and ids of inactive slots, idle experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.contents import empty_expert
from moesaic.conformance.feeding import CALM, Poison
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject
from moesaic.quant import Plain


@final
@dataclass(frozen=True)
class UndefinedRows(Check):
    """NaN, a huge finite value and infinity in every undefined row and behind every inactive slot.

    Meant for F15, F18 to F20, F29: padding computed, multiplied by zero, summed, or setting a scale that live rows
    share (which only the finite poison shows).
    """

    name: ClassVar[str] = "undefined_rows"
    meaning: ClassVar[str] = "undefined rows and the weights of inactive slots change no bit of a live row"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return None

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        calm = subject.rows(case, subject.feed(case, CALM), prepared)
        for value in (math.nan, 1e4, math.inf):
            got = subject.rows(case, subject.feed(case, Poison(value)), prepared)
            subject.same(case, got, calm, f"live rows beside undefined memory that holds {value}")


@final
@dataclass(frozen=True)
class GarbageIds(Check):
    """Ids -1, L, L + 5, the ends of int32 and others in inactive slots, in two orders; their weights are ordinary.

    Meant for F14, F15, F17, F18, F23: an id aliased to the last expert, used as an index, or computed on expert 0.
    """

    name: ClassVar[str] = "garbage_ids"
    meaning: ClassVar[str] = "whatever id marks an inactive slot, live rows keep their bits"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if not (case.problem.layout.has_routing and case.problem.inactive_slots):
            return "no slot is inactive"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        calm = subject.rows(case, subject.feed(case, CALM), prepared)
        for rotation in (0, 3):
            got = subject.rows(case, subject.feed(case, Poison(0.5, rotation)), prepared)
            subject.same(case, got, calm, "live rows beside slots that are inactive")


@final
@dataclass(frozen=True)
class IdleExpert(Check):
    """NaN and infinity in the weights of the expert that no slot names.

    Meant for F14, F18, F20 and F50: an inactive slot or a gap computed on some expert "with weight zero", an empty
    group whose result is kept, a scale taken over all experts.
    """

    name: ClassVar[str] = "idle_expert"
    meaning: ClassVar[str] = "the weights of an expert without rows change no bit of a live row"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        if empty_expert(case) is None:
            return "every expert has rows"
        if not isinstance(case.problem.scheme.weights, Plain):
            return "a quantized tensor holds no NaN"
        return Check.applies(self, backend, case)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        idle, experts = empty_expert(case), case.problem.num_experts
        calm = subject.output(case, CALM)
        for value in (math.nan, math.inf):

            def poisoned(values: Tensor, value: float = value) -> Tensor:
                there = subject.place(values)
                if there.ndim > 1 and there.shape[0] == experts:  # the scale of the output norm is for all experts
                    there[idle] = value
                return there

            prepared = subject.prepare(case, placed(subject.oracle.weights(case), poisoned))
            got = subject.rows(case, subject.feed(case, CALM), prepared)
            subject.same(case, got, calm, f"live rows beside an idle expert whose weights are {value}")
