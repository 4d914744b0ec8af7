"""What an activation computes: published values, float32, and the ends of the number line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.activation_checks.subject import ActivationSubject, grid, random_rows, rows_of
from moesaic.conformance.piece import PieceCheck, close, equal_bits, kept_form
from moesaic.errors import Nonconformance

ERROR = 1e-6
"""Allowed in float32, as a share of the value and of (1 + |gate|)(1 + |up|): 8 roundings of the largest factor."""


@final
@dataclass(frozen=True)
class Examples(PieceCheck[ActivationSubject]):
    """An act probe of the catalogue: F01, F03 to F05, F07, F09."""

    name: ClassVar[str] = "examples"
    meaning: ClassVar[str] = "the values that the publication states"

    @override
    def applies(self, subject: ActivationSubject) -> str | None:
        return None if subject.examples else "no examples are stated"

    @override
    def run(self, subject: ActivationSubject) -> None:
        for example in subject.examples:
            gate, up = torch.full((2, 3), example.gate), torch.full((2, 3), example.up)
            wanted = torch.full((2, 3), example.value, dtype=torch.float64)
            got = subject.base(rows_of(subject.base, gate, up))
            allowed = wanted.abs() * example.within if math.isfinite(example.value) else torch.zeros_like(wanted)
            close(got, wanted, allowed, f"{subject.base!r} at gate {example.gate:g} and up {example.up:g}")


@final
@dataclass(frozen=True)
class Float32(PieceCheck[ActivationSubject]):
    """Against float64 rows on a dense grid: a tanh of 11 bits, or bfloat16 inside, is seen. Meant for F05."""

    name: ClassVar[str] = "float32"
    meaning: ClassVar[str] = "float32 is computed as accurately as float32 is"

    @override
    def run(self, subject: ActivationSubject) -> None:
        for activation in subject.variants():
            gate, up = grid(activation, torch.linspace(-52, 52, 209) + 0.013)
            got = activation(rows_of(activation, gate, up))
            wanted = activation(rows_of(activation, gate.double(), up.double()))
            kept_form(got, torch.float32, tuple(gate.shape), f"what {activation!r} makes of float32")
            kept_form(wanted, torch.float64, tuple(gate.shape), f"what {activation!r} makes of float64")
            size = (1 + gate.abs()) * (1 + (up.abs() if activation.gated else gate.abs()))
            close(got, wanted, ERROR * (wanted.abs() + size.double()), f"{activation!r} in float32 against float64")


@final
@dataclass(frozen=True)
class NarrowInputs(PieceCheck[ActivationSubject]):
    """bfloat16 and float16 rows give the float32 of the same numbers. Meant for F05, F37."""

    name: ClassVar[str] = "narrow_inputs"
    meaning: ClassVar[str] = "bfloat16 and float16 rows are computed in float32"

    @override
    def run(self, subject: ActivationSubject) -> None:
        for activation in subject.variants():
            for dtype in (torch.bfloat16, torch.float16):
                rows = random_rows(activation, 7, 33).to(dtype)
                equal_bits(activation(rows), activation(rows.float()), f"{activation!r} of {dtype} rows")


@final
@dataclass(frozen=True)
class Extremes(PieceCheck[ActivationSubject]):
    """Infinite and huge values give NaN and infinity only where the formula does. Meant for F06."""

    name: ClassVar[str] = "extremes"
    meaning: ClassVar[str] = "NaN and infinity come where the formula has them, wherever the element stands"

    @override
    def run(self, subject: ActivationSubject) -> None:
        infinite = torch.tensor([-math.inf, -1e4, -50.0, -1.0, 0.0, 1.0, 50.0, 1e4, math.inf])
        for activation in subject.variants():
            pairs = [tuple(part.reshape(1, -1) for part in grid(activation, infinite))]
            gate = torch.tensor([[-1000.0, -100.0, 100.0, 1000.0]])
            pairs += [(gate, torch.full_like(gate, up)) for up in (0.0, 1.0)]
            for gate, up in pairs:
                exact = activation(rows_of(activation, gate.double(), up.double())).float()
                got = activation(rows_of(activation, gate, up))
                tall = activation(rows_of(activation, gate.mT, up.mT)).mT  # each element alone in its row
                for values, where in ((got, "side by side"), (tall, "each in its row")):
                    special = ~exact.isfinite() | ~values.isfinite()
                    agree = (values == exact) | (values.isnan() & exact.isnan()) | ~special
                    if not bool(agree.all()):
                        at = int((~agree).flatten().nonzero()[0])
                        raise Nonconformance(
                            f"{activation!r} at gate {gate.flatten()[at]:g} and up {up.flatten()[at]:g}, {where}",
                            f"{exact.flatten()[at]:g}, as in float64",
                            f"{values.flatten()[at]:g}",
                        )
