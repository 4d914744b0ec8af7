"""How a tensor is stored: Format (the rule), Quantized (tensors stored by it), Scheme (a layer's two formats)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from moesaic.checks import instance
from moesaic.errors import FormatError


@dataclass(frozen=True)
class Format(ABC):
    """How one tensor is stored. `dequantize` is its only meaning; `quantize` is one way to get there.

    To add one, copy `plain.py`: a final frozen dataclass whose `scale_names` says which tensors stand beside the
    data. Scales are multipliers that read a stored value back, never their reciprocals.
    """

    @property
    @abstractmethod
    def scale_names(self) -> tuple[str, ...]:
        """The names of the tensors stored beside the data, in order."""

    @abstractmethod
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        """The shape of the tensor that `data` stores (packed formats hold several values in one element)."""

    @abstractmethod
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        """Store `values`. A format that loses bits raises FormatError naming `name` and the index of a NaN or inf."""

    @abstractmethod
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        """The exact values of `stored`, rounded once to `dtype`."""


@final
@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor as stored: `data` in the format's own dtype, and the scales that the format names.

    Stacked over experts, data and every scale have the expert as their first dimension.
    """

    format: Format
    data: Tensor
    scales: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        wanted, got = self.format.scale_names, tuple(self.scales)
        if set(wanted) != set(got):
            raise FormatError(f"{self.format!r} stores the scales {wanted}, but the tensor came with {got}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is stored."""
        return self.format.logical_shape(self.data)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Data and scales, in order."""
        return (self.data, *(self.scales[name] for name in self.format.scale_names))

    def expert(self, expert_id: int) -> Quantized:
        """The part of one expert, without a copy."""
        return Quantized(self.format, self.data[expert_id], {name: s[expert_id] for name, s in self.scales.items()})

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The exact values, rounded once to `dtype`."""
        return self.format.dequantize(self, dtype)


@final
@dataclass(frozen=True)
class Scheme:
    """How a layer's weights and inputs are stored while it computes; `Scheme(Plain(), Plain())` is W16A16."""

    weights: Format
    inputs: Format

    def __post_init__(self) -> None:
        for name in ("weights", "inputs"):
            instance("Scheme", name, getattr(self, name), Format, FormatError, example="Plain()")
