"""Constants of an activation: each matters, each may differ between experts, and the value is one value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.activation_checks.subject import ActivationSubject, grid, random_rows, rows_of
from moesaic.conformance.frozen_value import equal, is_frozen, is_one_value
from moesaic.conformance.piece import PieceCheck, close
from moesaic.errors import ActivationError, Nonconformance


@final
@dataclass(frozen=True)
class ConstantsMatter(PieceCheck[ActivationSubject]):
    """A constant that is moved changes the answer somewhere. Meant for F01, F03, F04, F70."""

    name: ClassVar[str] = "constants_matter"
    meaning: ClassVar[str] = "no constant is ignored"

    @override
    def applies(self, subject: ActivationSubject) -> str | None:
        return None if subject.base.constants() else "there are no constants"

    @override
    def run(self, subject: ActivationSubject) -> None:
        base = subject.base
        rows = rows_of(base, *grid(base, torch.linspace(-60, 60, 81)))
        before = base(rows)
        for name in base.constants():
            moved = subject.with_moved(name)
            change = (moved(rows) - before).abs() / (1 + before.abs())
            if float(change.nan_to_num().max()) < 1e-5:
                raise Nonconformance(f"{moved!r} against {base!r}", f"another answer, as {name} differs", "the same")


@final
@dataclass(frozen=True)
class PerExpert(PieceCheck[ActivationSubject]):
    """Row r is computed with the constants of expert ids[r]; `select` takes those of a rank. Meant for F46, F70."""

    name: ClassVar[str] = "per_expert"
    meaning: ClassVar[str] = "constants that differ between experts are taken by expert id"

    @override
    def applies(self, subject: ActivationSubject) -> str | None:
        return None if subject.numbers() else "no constant is a number"

    @override
    def run(self, subject: ActivationSubject) -> None:
        base, ids = subject.base, torch.tensor([2, 0, 1, 1, 2, 0, 0])
        rows = random_rows(base, 7, 5)
        for name in subject.numbers():
            own = _three_values(subject, name)
            each = replace(base, **{name: own})
            got, alone = each(rows, ids.to(torch.int32)), [replace(base, **{name: value}) for value in own]
            wanted = torch.stack([alone[e](rows)[r] for r, e in enumerate(ids.tolist())])
            allowed = 2e-6 * (1 + wanted.double().abs())
            close(got, wanted, allowed, f"{each!r} for the experts {ids.tolist()}")
            close(each(rows, ids), wanted, allowed, f"{each!r} for int64 ids")
            slabs = each(rows.expand(2, 7, -1), torch.stack((ids, ids)))
            close(slabs[1], wanted, allowed, f"{each!r} for ids of two dimensions")
            equal(each.select((2, 0)), replace(base, **{name: (own[2], own[0])}), "the experts 2 and 0 selected")
            equal(each.select((1,)), alone[1], "expert 1 selected")
            if each.per_expert() != {name: 3}:
                raise Nonconformance(f"per_expert of {each!r}", f"{{{name!r}: 3}}", f"{each.per_expert()}")
            try:
                each(rows)
            except ActivationError:
                continue
            raise Nonconformance(f"{each!r} without expert ids", "an ActivationError", "an answer")


@final
@dataclass(frozen=True)
class OneValue(PieceCheck[ActivationSubject]):
    """Frozen; equal values have one repr, which reads back, and one hash. Meant for F75, F110."""

    name: ClassVar[str] = "one_value"
    meaning: ClassVar[str] = "a frozen value with one repr and one hash, whatever numbers it was built from"

    @override
    def run(self, subject: ActivationSubject) -> None:
        for activation in (*subject.variants(), subject.activation):
            is_frozen(activation)
            is_one_value(activation)
        base = subject.base
        for name in subject.numbers():
            for whole in (1, 2):
                equal(
                    replace(base, **{name: whole}),
                    replace(base, **{name: float(whole)}),
                    f"{base.__class__.__name__} with {name}={whole}",
                )
            same = replace(base, **{name: (2.0, 2.0)})
            equal(same, replace(base, **{name: 2.0}), f"{base.__class__.__name__} with {name}=(2.0, 2.0)")


@final
@dataclass(frozen=True)
class Refusals(PieceCheck[ActivationSubject]):
    """A bool, NaN or infinity is no constant. Meant for F41, F75."""

    name: ClassVar[str] = "refusals"
    meaning: ClassVar[str] = "a constant that is no finite number is refused by name"

    @override
    def applies(self, subject: ActivationSubject) -> str | None:
        return None if subject.numbers() else "no constant is a number"

    @override
    def run(self, subject: ActivationSubject) -> None:
        bad: tuple[Any, ...] = (math.nan, math.inf, -math.inf, True, (1.0, math.nan), (1.0, True), ())
        for name in subject.numbers():
            for value in bad:
                try:
                    replace(subject.base, **{name: value})
                except ActivationError as fault:
                    if name not in str(fault):
                        raise Nonconformance(f"the error for {name}={value!r}", name, str(fault)) from fault
                    continue
                raise Nonconformance(f"{subject.base!r} with {name}={value!r}", "an ActivationError", "a value")


def _three_values(subject: ActivationSubject, name: str) -> tuple[float, float, float]:
    """Three values of a constant, no two alike."""
    now, other = subject.base.constants()[name], subject.moved(name)
    first = 2 * other + 0.25 if now is None else now
    return first, other, 0.5 * (first + other)
