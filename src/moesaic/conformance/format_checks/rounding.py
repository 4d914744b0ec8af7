"""How far a value that is read back may be from the one that was stored, and what comes back as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.format_checks.subject import FormatSubject, normal
from moesaic.conformance.piece import PieceCheck, close, equal_bits
from moesaic.errors import Nonconformance


@final
@dataclass(frozen=True)
class StoredExamples(PieceCheck[FormatSubject]):
    """Bytes and scales of the publication mean its values. Meant for F45, F47."""

    name: ClassVar[str] = "examples"
    meaning: ClassVar[str] = "stored numbers mean what the publication says"

    @override
    def applies(self, subject: FormatSubject) -> str | None:
        return None if subject.examples else "no examples are stated"

    @override
    def run(self, subject: FormatSubject) -> None:
        from moesaic.quant import Quantized  # noqa: PLC0415

        for example in subject.examples:
            wanted = torch.tensor(example.values, dtype=torch.float64)
            got = Quantized(subject.format, example.data, example.scales).dequantize(torch.float64)
            close(
                got, wanted, 1e-7 * wanted.abs(), f"{subject.format!r} of the bytes {example.data.flatten().tolist()}"
            )


@final
@dataclass(frozen=True)
class Errors(PieceCheck[FormatSubject]):
    """Normal numbers of every size lose no more than is stated. Meant for F44, F45, F47, F49, and truncation."""

    name: ClassVar[str] = "error"
    meaning: ClassVar[str] = "no value is further off than the format's rounding allows"

    @override
    def run(self, subject: FormatSubject) -> None:
        for seed, sigma in enumerate((1.0, 0.02, 0.002, 0.001, 30.0)):
            values = sigma * normal(64, 256, seed=seed)
            subject.within(values, f"normal numbers of deviation {sigma:g}")
            subject.within(values.abs(), f"positive normal numbers of deviation {sigma:g}")
            # Two rows that are filled by one value each, at the top of a scale and just below.
            even = values[:2].sign() * sigma * torch.tensor([[1.0], [0.96875]])
            subject.within(even, f"numbers of the size {sigma:g}")


@final
@dataclass(frozen=True)
class Exact(PieceCheck[FormatSubject]):
    """The codes' own values survive under every power of two. Meant for F44, F45, F47: an exponent off by one."""

    name: ClassVar[str] = "exact"
    meaning: ClassVar[str] = "values that the format can represent come back as they were"

    @override
    def applies(self, subject: FormatSubject) -> str | None:
        return None if subject.exact else "no exact values are stated"

    @override
    def run(self, subject: FormatSubject) -> None:
        codes = torch.tensor(subject.exact)
        rows, columns = subject.spanning(2)
        places = torch.randint(len(codes), (rows, columns), generator=torch.Generator().manual_seed(0))
        values = codes[places]
        step = subject.tile[1] or columns
        values[:, ::step] = codes[codes.abs().argmax()]
        for power in (*subject.powers, 0):
            scaled = values * 2.0**power
            got = subject.read_back(scaled)
            close(got, scaled, 1e-6 * scaled.double().abs(), f"exact values times 2^{power} in {subject.format!r}")


@final
@dataclass(frozen=True)
class Ramp(PieceCheck[FormatSubject]):
    """Rising values come back in order. Meant for F47: codes or places exchanged, which a coarse bound lets pass."""

    name: ClassVar[str] = "ramp"
    meaning: ClassVar[str] = "values that rise are read back as values that do not fall"

    @override
    def run(self, subject: FormatSubject) -> None:
        rows, columns = min(subject.tile[0] or 4, 16), min(subject.tile[1] or 64, 64)
        for low, high in ((-1.0, 1.0), (0.0, 1.0), (-3.0, -1.0)):
            values = torch.linspace(low, high, rows * columns)
            got = subject.read_back(values.view(rows, columns)).flatten()
            falls = (got.diff() < 0).nonzero().flatten().tolist()
            for place in falls[:1]:
                raise Nonconformance(
                    f"{values[place].item():g} and then {values[place + 1].item():g} in {subject.format!r}",
                    "values that do not fall",
                    f"{got[place].item():g} and {got[place + 1].item():g}",
                )


@final
@dataclass(frozen=True)
class Again(PieceCheck[FormatSubject]):
    """Storing what was read back changes nothing, so nothing drifts. Meant for F53."""

    name: ClassVar[str] = "again"
    meaning: ClassVar[str] = "storing what was read back gives the same values"

    @override
    def applies(self, subject: FormatSubject) -> str | None:
        return None if subject.idempotent else "the format is not idempotent"

    @override
    def run(self, subject: FormatSubject) -> None:
        once = subject.read_back(normal(40, 192))
        twice = subject.read_back(once)
        close(twice, once, 1e-5 * subject.largest(once), f"values read back from {subject.format!r}, stored again")


@final
@dataclass(frozen=True)
class Scaled(PieceCheck[FormatSubject]):
    """A tensor times a power of two is stored as well as the tensor. Meant for F44 (a scale fixed at 1), F49."""

    name: ClassVar[str] = "scaled"
    meaning: ClassVar[str] = "a power of two on the tensor is one on the values read back"

    @override
    def run(self, subject: FormatSubject) -> None:
        values = normal(48, 192)
        once = subject.read_back(values, torch.float64)
        for power in (subject.powers[0], -1, 1, subject.powers[1]):
            got = subject.read_back(values * 2.0**power, torch.float64) * 2.0**-power
            close(got, once, 1e-6 * subject.largest(values), f"values times 2^{power} in {subject.format!r}")


@final
@dataclass(frozen=True)
class OneRounding(PieceCheck[FormatSubject]):
    """float32 is float64 rounded once; bfloat16 and float16 are float32 rounded. Meant for F37."""

    name: ClassVar[str] = "one_rounding"
    meaning: ClassVar[str] = "values are computed in float32 with one rounding, then rounded to the dtype asked for"

    @override
    def run(self, subject: FormatSubject) -> None:
        stored = subject.format.quantize(normal(24, 192))
        exact, single = stored.dequantize(torch.float64), stored.dequantize(torch.float32)
        equal_bits(single, exact.float(), f"{subject.format!r} in float32, against float64 rounded")
        for dtype in (torch.bfloat16, torch.float16):
            equal_bits(stored.dequantize(dtype), single.to(dtype), f"{subject.format!r} in {dtype}")
