"""FormatSteps: a plain block format in steps, of which each mutant overrides one; HonestFormat is the control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.format_checks import FormatSubject
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.judge_pieces import FormatJudge
from moesaic.quant import Format, PerBlock, Quantized, StoredTensor
from moesaic.quant.values import matrix_values

TILE = PerBlock(16, 16)

INT8_FACTS: dict[str, Any] = {"error": 0.5 / 127, "exact": tuple(map(float, range(-127, 128)))}
"""What an author would state of an integer format of 8 bits."""


@dataclass(frozen=True)
class FormatSteps(Format):
    """`q * scale`: q int8, a float32 scale for a block of 16 x 16."""

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale",)

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {"data": StoredTensor(torch.int8, shape), "scale": StoredTensor(torch.float32, TILE.grid(shape))}

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return tuple(data.shape)

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        work = self.checked(values, name)
        scale = self.scale(work)
        steps = work / self.spread(scale, tuple(work.shape))
        return Quantized(self, self.codes(steps), {"scale": scale})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = self.read_spread(stored.scales["scale"].to(work), stored.shape)
        return self.product(stored.data.to(work), scale).to(dtype)

    def checked(self, values: Tensor, name: str) -> Tensor:
        """The values in float32; a NaN or infinity is refused."""
        return matrix_values(values, name)

    def scale(self, work: Tensor) -> Tensor:
        """A scale for each block; that of zeros is 1."""
        largest = TILE.largest(work)
        return (largest / 127).where(largest > 0, 1.0)

    def spread(self, scale: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The scale of each value while it is stored."""
        return TILE.spread(scale, shape)

    def read_spread(self, scale: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The scale of each value while it is read."""
        return TILE.spread(scale, shape)

    def codes(self, steps: Tensor) -> Tensor:
        """The nearest whole numbers."""
        return steps.round().clamp(-127, 127).to(torch.int8)

    def product(self, codes: Tensor, scale: Tensor) -> Tensor:
        """The values of codes."""
        return codes * scale


@final
@dataclass(frozen=True)
class HonestFormat(FormatSteps):
    """Nothing is wrong."""


def of_format(name: str, subject: Format, check: str, control: Format, **facts: Any) -> Mutant:
    """A mutant of `control`, of which the author states `facts`."""
    return Mutant(
        name=name,
        meaning=(subject.__class__.__doc__ or name).splitlines()[0],
        check=check,
        subject=FormatSubject(subject, **facts),
        control=FormatSubject(control, **facts),
        judge=FormatJudge(),
    )
