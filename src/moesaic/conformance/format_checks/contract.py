"""The contract around the numbers: refusals, forms, whose memory is whose, and the format as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.checks.ownership import as_bytes
from moesaic.conformance.format_checks.subject import FormatSubject, normal
from moesaic.conformance.frozen_value import is_frozen, is_one_value
from moesaic.conformance.piece import PieceCheck, equal_bits, kept_form, memory
from moesaic.errors import FormatError, Nonconformance

BAD = (math.nan, math.inf, -math.inf)


@final
@dataclass(frozen=True)
class NonFinite(PieceCheck[FormatSubject]):
    """NaN and infinity are refused with tensor and index, or kept by a format that loses nothing. Meant for F50."""

    name: ClassVar[str] = "non_finite"
    meaning: ClassVar[str] = "a NaN or infinity is an error that names tensor and index, or is kept"

    @override
    def run(self, subject: FormatSubject) -> None:
        for bad in BAD:
            values = normal(4, 64)
            values[2, 37] = bad
            if subject.allowed == 0:
                equal_bits(subject.read_back(values), values, f"values with {bad} in {subject.format!r}")
                continue
            try:
                stored = subject.format.quantize(values, name="gate_up")
            except FormatError as fault:
                missing = [part for part in ("gate_up", "2", "37") if part not in str(fault)]
                if missing:
                    raise Nonconformance("the error for gate_up[2, 37]", f"{missing} in it", str(fault)) from fault
                continue
            got = stored.dequantize(torch.float32)[2, 37].item()
            raise Nonconformance(f"{bad} in {subject.format!r}", "a FormatError", f"{got:g} stored in its place")


@final
@dataclass(frozen=True)
class RoundTrip(PieceCheck[FormatSubject]):
    """What rows are rounded to while a layer computes: NaN stays in its place, and takes part in no scale. F19, F50."""

    name: ClassVar[str] = "round_trip"
    meaning: ClassVar[str] = "rounded rows keep their dtype, and NaN where it was and nowhere else"

    @override
    def run(self, subject: FormatSubject) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            calm = normal(4, 64).to(dtype)
            calm[1, 9] = 0.0
            wanted = subject.format.round_trip(calm)
            kept_form(wanted, dtype, (4, 64), f"the rounded rows of {subject.format!r}")
            if subject.allowed:
                equal_bits(wanted, subject.read_back(calm, dtype), f"the rounded rows of {subject.format!r}")
            for bad in BAD:
                values = calm.clone()
                values[1, 9] = bad
                got = subject.format.round_trip(values)
                expected = wanted.clone()
                expected[1, 9] = bad
                equal_bits(got, expected, f"rows with {bad} at [1, 9], rounded to {subject.format!r}")


@final
@dataclass(frozen=True)
class Forms(PieceCheck[FormatSubject]):
    """Dtypes and shapes are those that `storage` says, in bytes too. Meant for F30, F57."""

    name: ClassVar[str] = "forms"
    meaning: ClassVar[str] = "what is stored has the dtypes, shapes and bytes that the format declares"

    @override
    def run(self, subject: FormatSubject) -> None:
        for shape in ((6, 64), (3, 40, 96), (2, 3, 4, 130)):
            stored = subject.format.quantize(normal(*shape))
            declared = subject.format.storage(shape, torch.float32)
            if stored.format != subject.format or set(declared) != {"data", *subject.format.scale_names}:
                raise Nonconformance("what is stored", f"{subject.format!r} as declared", f"{stored.format!r}")
            for name, tensor in zip(("data", *subject.format.scale_names), stored.tensors, strict=True):
                kept_form(tensor, declared[name].dtype, declared[name].shape, f"{name} of {subject.format!r}")
            held = sum(t.numel() * t.element_size() for t in stored.tensors)
            if held != subject.format.num_bytes(shape, torch.float32):
                raise Nonconformance("bytes", f"{subject.format.num_bytes(shape, torch.float32)}", f"{held}")
            if subject.format.logical_shape(stored.data) != shape:
                raise Nonconformance("the logical shape", f"{shape}", f"{subject.format.logical_shape(stored.data)}")
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
                kept_form(stored.dequantize(dtype), dtype, shape, f"values of {subject.format!r}")


@final
@dataclass(frozen=True)
class ValuesUnchanged(PieceCheck[FormatSubject]):
    """Neither storing nor reading changes what it is given; a view is stored as its copy. Meant for F27, F52."""

    name: ClassVar[str] = "values_unchanged"
    meaning: ClassVar[str] = "storing and reading change nothing that they are given"

    @override
    def run(self, subject: FormatSubject) -> None:
        values = normal(192, 40)
        view, kept = values.T, values.clone()
        stored = subject.format.quantize(view)
        equal_bits(values, kept, f"the values after {subject.format!r} stored them")
        if subject.allowed and any(memory(t) == memory(values) for t in stored.tensors):
            raise Nonconformance(f"what {subject.format!r} stores", "memory of its own", "that of the values")
        before = [as_bytes(t).clone() for t in stored.tensors]
        first = stored.dequantize(torch.float32).clone()
        equal_bits(stored.dequantize(torch.float32), first, f"values of {subject.format!r} read a second time")
        for after, then in zip(stored.tensors, before, strict=True):
            equal_bits(as_bytes(after), then, f"what {subject.format!r} stores, after it was read")
        copied = subject.format.quantize(view.contiguous())
        for got, wanted in zip(stored.tensors, copied.tensors, strict=True):
            equal_bits(as_bytes(got), as_bytes(wanted), f"a transposed view in {subject.format!r}")


@final
@dataclass(frozen=True)
class OneFormat(PieceCheck[FormatSubject]):
    """Frozen, with one repr that reads back and one hash. Meant for F75."""

    name: ClassVar[str] = "one_value"
    meaning: ClassVar[str] = "a frozen value with one repr and one hash"

    @override
    def run(self, subject: FormatSubject) -> None:
        is_frozen(subject.format)
        is_one_value(subject.format)
