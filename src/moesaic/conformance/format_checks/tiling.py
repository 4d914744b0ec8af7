"""Which values share a scale: those of one tile, short ones at the ends, and no two experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.checks.ownership import as_bytes
from moesaic.conformance.format_checks.subject import FormatSubject, normal
from moesaic.conformance.piece import PieceCheck, equal_bits
from moesaic.errors import FormatError, Nonconformance

SHAPES = ((1, 2), (3, 2), (5, 66), (7, 64), (129, 192), (130, 320), (1, 1), (5, 65), (33, 127))
"""Multiples of no tile, in one direction or both; the last three are odd, which a packed format may refuse."""


@final
@dataclass(frozen=True)
class Tiles(PieceCheck[FormatSubject]):
    """Each tile has numbers of another size, one of them 64 times larger. Meant for F51, F56."""

    name: ClassVar[str] = "tiles"
    meaning: ClassVar[str] = "a scale belongs to the values of its own tile"

    @override
    def run(self, subject: FormatSubject) -> None:
        shape = subject.spanning(3)
        numbers = subject.tiles(shape)
        _, order = numbers.unique(return_inverse=True)
        for seed in range(2):
            sizes = torch.tensor([1.0, 0.25, 1 / 16, 1 / 64])[(order * 7 + order // 3 + seed) % 4]
            values = normal(*shape, seed=seed) * sizes
            values[shape[0] // 2, shape[1] // 2] = 64.0
            subject.within(values, "tiles of different sizes, with one outlier,")


@final
@dataclass(frozen=True)
class Sizes(PieceCheck[FormatSubject]):
    """Last tiles that are short, with numbers 16 times larger or smaller than the others'. Meant for F56, F58."""

    name: ClassVar[str] = "sizes"
    meaning: ClassVar[str] = "any size is stored, with short tiles at the ends"

    @override
    def run(self, subject: FormatSubject) -> None:
        for shape in SHAPES:
            try:
                subject.format.storage(shape, torch.float32)
            except FormatError:
                if shape[1] % 2:
                    continue
                raise
            values = normal(*shape)
            rows, columns = (size or SHAPES[-1][1] for size in subject.tile)
            for factor in (16.0, 1 / 16):
                ends = values.clone()
                ends[(shape[0] - 1) // rows * rows :] *= factor
                ends[:, (shape[1] - 1) // columns * columns :] *= factor
                stored = subject.within(ends, f"a matrix {shape}")
                if stored.shape != shape:
                    raise Nonconformance(f"the shape that {subject.format!r} stores", f"{shape}", f"{stored.shape}")


@final
@dataclass(frozen=True)
class Experts(PieceCheck[FormatSubject]):
    """A stack of matrices is each of them alone, to the bit. Meant for F46, F90: scales shared between experts."""

    name: ClassVar[str] = "experts"
    meaning: ClassVar[str] = "a stack is stored as each of its matrices alone"

    @override
    def run(self, subject: FormatSubject) -> None:
        stack = normal(2, 3, 20, 96) * torch.tensor([1.0, 8.0, 1 / 16]).view(3, 1, 1)
        whole = subject.format.quantize(stack)
        values = whole.dequantize(torch.float32)
        for i in range(2):
            for j in range(3):
                part, alone = whole.expert(i).expert(j), subject.format.quantize(stack[i, j])
                equal_bits(part.dequantize(torch.float32), values[i, j], f"expert {i}, {j} against the whole stack")
                for name, got, wanted in zip(
                    ("data", *subject.format.scale_names), part.tensors, alone.tensors, strict=True
                ):
                    equal_bits(as_bytes(got), as_bytes(wanted), f"the bytes of {name} of expert {i}, {j} in a stack")


@final
@dataclass(frozen=True)
class Zeros(PieceCheck[FormatSubject]):
    """A matrix, an expert and a tile of zeros are zeros. Meant for F50."""

    name: ClassVar[str] = "zeros"
    meaning: ClassVar[str] = "zeros are read back as zeros, with finite scales"

    @override
    def run(self, subject: FormatSubject) -> None:
        shape = subject.spanning(2)
        stack = torch.zeros(3, *shape)
        stack[1] = normal(*shape)
        stack[1][subject.tiles(shape) == 0] = 0.0
        for values, what in ((stack, "a stack with zero experts"), (torch.zeros(shape), "a matrix of zeros")):
            stored = subject.format.quantize(values)
            got = stored.dequantize(torch.float32)
            wrong = (values == 0) & (got != 0)
            if bool(wrong.any()):
                bad = got[wrong][0].item()
                raise Nonconformance(f"{what} in {subject.format!r}", "zeros where they were", f"{bad:g}")
            for name in subject.format.scale_names:
                if not bool(stored.scales[name].float().isfinite().all()):
                    raise Nonconformance(f"{name} of {what} in {subject.format!r}", "finite numbers", "others")
        subject.format.quantize(torch.zeros(0, shape[1])).dequantize(torch.float32)
