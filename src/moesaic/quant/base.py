"""How a tensor is stored: Format (the rule) and Quantized (tensors stored by it).

A stored tensor is `[..., rows, columns]`: any leading dimensions (experts), then a matrix. Data and every scale have
the same leading dimensions, and their last two run along rows and columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from moesaic.checks import instance, whole_number
from moesaic.errors import FormatError


@final
@dataclass(frozen=True)
class StoredTensor:
    """Dtype and shape of one of the tensors that a format stores."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Format(ABC):
    """How one tensor is stored. `dequantize` is its only meaning; `quantize` is one way to get there.

    To add one, copy `int8.py`: a final frozen dataclass whose `scale_names` says which tensors stand beside the
    data. Scales are multipliers that read a stored value back, never their reciprocals.
    """

    @property
    @abstractmethod
    def scale_names(self) -> tuple[str, ...]:
        """The names of the tensors stored beside the data, in order."""

    @abstractmethod
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        """What a tensor of `shape` is stored as: "data" and every scale. `dtype` is that of values left as they are.

        Raises FormatError if the format cannot store that shape.
        """

    @abstractmethod
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        """The shape of the tensor that `data` stores (packed formats hold several values in one element)."""

    @abstractmethod
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        """Store `values`. A format that loses bits raises FormatError naming `name` and the index of a NaN or inf."""

    @abstractmethod
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        """The values of `stored`, which has one part: computed in float32 with one rounding, then rounded to `dtype`.

        In float64 they are exact. No value is read on the host.
        """

    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        """Of a matrix `[rows, columns]`: for how many rows and columns one element of "data" and of each scale stands.

        `ExpertWeights.shard` cuts by these. Raises FormatError for a format that does not say so.
        """
        raise FormatError(
            f"{self!r} does not say for how many rows and columns its data and scales stand, so a matrix of {rows} x "
            f"{columns} cannot be cut: give {self.__class__.__name__} the method `tiles` of Format"
        )

    def round_trip(self, values: Tensor) -> Tensor:
        """`values` quantized and read back in their own dtype: what a layer computes with when inputs have this format.

        A value that is not finite stays as it is and takes part in no scale, so a NaN stays in its row. The result has
        no gradient.
        """
        values = values.detach()
        finite = values.isfinite()
        stored = self.quantize(values.where(finite, 0), name="rows")
        return stored.dequantize(values.dtype).where(finite, values)

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Bytes of a tensor of `shape` as stored, scales included."""
        return sum(tensor.num_bytes for tensor in self.storage(shape, dtype).values())


@final
@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor as stored: `data` in the format's own dtype, and the scales that the format names.

    Stacked over experts, data and every scale have the expert as their first dimension. `parts` matrices of equal
    height, quantized apart, may stand above each other in the rows (gate above up): no scale is shared by two of
    them, and each has its own short last block. Shapes and dtypes are checked; a FormatError names the tensor.
    """

    format: Format
    data: Tensor
    scales: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    parts: int = 1

    def __post_init__(self) -> None:
        for name, tensor in {"data": self.data, **self.scales}.items():
            instance("Quantized", name, tensor, Tensor, FormatError, example="torch.as_tensor(values)")
        wanted, got = self.format.scale_names, tuple(self.scales)
        if set(wanted) != set(got):
            raise FormatError(f"{self.format!r} stores the scales {wanted}, but the tensor came with {got}")
        whole_number("Quantized", "parts", self.parts, FormatError)
        shape = self.shape
        if self.parts > 1:
            if len(shape) < 2 or shape[-2] % self.parts:
                raise FormatError(f"the data stores {shape}, whose rows are not {self.parts} parts of equal height")
            shape = (*shape[:-2], self.parts, shape[-2] // self.parts, shape[-1])
        for name, needed in self.format.storage(shape, self.data.dtype).items():
            tensor = self.data if name == "data" else self.scales[name]
            joined = needed.shape if self.parts == 1 else _joined(needed.shape)
            if tensor.dtype != needed.dtype or tuple(tensor.shape) != joined:
                raise FormatError(
                    f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, but {self.format!r} stores a tensor of "
                    f"shape {self.shape} in {self.parts} part(s) with {needed.dtype} of shape {joined}"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is stored."""
        return self.format.logical_shape(self.data)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Data and scales, in order."""
        return (self.data, *(self.scales[name] for name in self.format.scale_names))

    def expert(self, expert_id: int) -> Quantized:
        """The part of one expert, the first dimension, without a copy.

        Raises FormatError for a tensor without experts, one matrix, and for anything but a whole number in `[0, L)`.
        """
        if len(self.shape) < 3:
            raise FormatError(
                f"the tensor stores {self.shape}, one matrix, but a part is taken of a stack (experts, rows, columns): "
                "it is the part of one expert already"
            )
        expert_id = whole_number("Quantized.expert", "expert_id", expert_id, FormatError, at_least=0)
        if expert_id >= self.shape[0]:
            raise FormatError(f"expert_id is {expert_id}, but the tensor stores {self.shape[0]} experts, from 0")
        scales = {name: scale[expert_id] for name, scale in self.scales.items()}
        return Quantized(self.format, self.data[expert_id], scales, self.parts)

    def select(self, expert_ids: Sequence[int]) -> Quantized:
        """The parts of the experts `expert_ids`, in that order, copied, with the scales of each.

        Raises FormatError for a tensor without experts, and for anything but whole numbers in `[0, L)`.
        """
        for expert_id in expert_ids:
            self.expert(expert_id)  # raises the error
        own = list(expert_ids)
        scales = {name: scale[own] for name, scale in self.scales.items()}
        return Quantized(self.format, self.data[own], scales, self.parts)

    def split(self) -> Quantized:
        """The parts as a dimension before the rows, `[..., parts, rows, columns]`, without a copy."""
        if self.parts == 1:
            return self
        data, *scales = (t.unflatten(-2, (self.parts, t.shape[-2] // self.parts)) for t in self.tensors)
        return Quantized(self.format, data, dict(zip(self.format.scale_names, scales, strict=True)))

    def join(self) -> Quantized:
        """The opposite of `split`: `[..., parts, rows, columns]` as one matrix of `parts` parts."""
        data, *scales = (t.flatten(-3, -2) for t in self.tensors)
        named = dict(zip(self.format.scale_names, scales, strict=True))
        return Quantized(self.format, data, named, self.data.shape[-3])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The values, computed in float32 with one rounding, then rounded to `dtype`; exact in float64."""
        values = self.format.dequantize(self.split(), dtype)
        return values if self.parts == 1 else values.flatten(-3, -2)


def _joined(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-3], shape[-3] * shape[-2], shape[-1])
