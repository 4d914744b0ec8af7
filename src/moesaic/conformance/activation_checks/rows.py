"""How an activation treats its rows: each element by itself, NaN as NaN, and the caller's memory as the caller's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.activation_checks.subject import ActivationSubject, random_rows
from moesaic.conformance.piece import PieceCheck, close, equal_bits, kept_form, memory
from moesaic.errors import ActivationError, Nonconformance

SIZE = 11
"""I: no multiple of a vector's length."""


@final
@dataclass(frozen=True)
class NanStays(PieceCheck[ActivationSubject]):
    """A NaN in gate or up is a NaN of its own column, through every clamp. Meant for F06."""

    name: ClassVar[str] = "nan_stays"
    meaning: ClassVar[str] = "NaN comes out where it went in, and nowhere else"

    @override
    def run(self, subject: ActivationSubject) -> None:
        for activation in subject.variants():
            rows = random_rows(activation, 5, SIZE)
            rows[1] = 0.0  # a NaN times zero is a NaN
            for column in range(0, activation.width(SIZE), 3):
                struck = rows.clone()
                struck[:3, column] = math.nan
                got = activation(struck).isnan()
                wanted = torch.zeros_like(got)
                wanted[:3, column % SIZE] = True
                if not torch.equal(got, wanted):
                    raise Nonconformance(
                        f"{activation!r} with NaN in column {column} of the rows 0 to 2",
                        f"NaN in column {column % SIZE} of these rows",
                        f"NaN at {got.nonzero().tolist()[:8]}",
                    )


@final
@dataclass(frozen=True)
class Elementwise(PieceCheck[ActivationSubject]):
    """Column j of a row depends on gate j and up j of that row. Meant for F08 (interleaved), F19, F96."""

    name: ClassVar[str] = "elementwise"
    meaning: ClassVar[str] = "an element depends on its own gate and up only"

    @override
    def run(self, subject: ActivationSubject) -> None:
        for activation in subject.variants():
            rows = random_rows(activation, 6, SIZE, seed=1)
            got, beside = activation(rows), rows * 1e3
            for column in (0, 4, SIZE - 1):
                own = [column, column + SIZE] if activation.gated else [column]
                wanted = got[:, column : column + 1]
                # Vectors of another length may round otherwise, hence an error, of a share of the inputs' size.
                allowed = 2e-6 * (1 + rows[:, own].abs().double()).prod(1, keepdim=True) ** 2
                close(activation(rows[:, own]), wanted, allowed, f"{activation!r} of column {column} alone")
                changed = beside.clone()
                changed[2, own] = rows[2, own]
                close(
                    activation(changed)[2:3, column : column + 1],
                    wanted[2:3],
                    allowed[2:3],
                    f"{activation!r} of row 2, column {column} beside other numbers",
                )


@final
@dataclass(frozen=True)
class Shapes(PieceCheck[ActivationSubject]):
    """Width, any leading dimensions, no rows at all, an odd width refused. Meant for F25, F30."""

    name: ClassVar[str] = "shapes"
    meaning: ClassVar[str] = "2I or I columns are read and I returned, for any number of rows"

    @override
    def run(self, subject: ActivationSubject) -> None:
        activation = subject.base
        width = activation.width(SIZE)
        if width != SIZE * (2 if activation.gated else 1):
            raise Nonconformance(f"the width of {activation!r} for I={SIZE}", f"{SIZE} or twice that", f"{width}")
        for lead in ((), (0,), (1,), (3,), (2, 3), (2, 0)):
            got = activation(torch.ones(*lead, width))
            kept_form(got, torch.float32, (*lead, SIZE), f"{activation!r} of rows {(*lead, width)}")
        if activation.gated:
            try:
                activation(torch.ones(2, width + 1))
            except ActivationError:
                return
            raise Nonconformance(f"{activation!r} of {width + 1} columns", "an ActivationError", "an answer")


@final
@dataclass(frozen=True)
class OwnMemory(PieceCheck[ActivationSubject]):
    """Rows keep their bytes, a result has memory of its own, a second call gives the same bits. Meant for F27, F93."""

    name: ClassVar[str] = "own_memory"
    meaning: ClassVar[str] = (
        "the rows are unchanged, the result shares no memory with them, and a second call is the same"
    )

    @override
    def run(self, subject: ActivationSubject) -> None:
        for activation in subject.variants():
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                rows = random_rows(activation, 5, SIZE).to(dtype)
                kept = rows.clone()
                got = activation(rows)
                equal_bits(rows, kept, f"the rows after {activation!r}")
                if memory(got) == memory(rows):
                    raise Nonconformance(f"the result of {activation!r}", "memory of its own", "that of the rows")
                first = got.clone()
                activation(rows * 1e3)
                equal_bits(got, first, f"the result of {activation!r} after another call")
                equal_bits(activation(rows), first, f"the second call of {activation!r}")
                strided = torch.stack((rows, -rows), dim=-1)[..., 0]
                allowed = 2e-6 * (1 + got.double().abs())
                close(activation(strided), got, allowed, f"{activation!r} of rows with strides")
