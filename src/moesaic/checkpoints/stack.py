"""Stack: one projection of several experts, filled matrix by matrix into tensors that are allocated once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.checkpoints.conventions import PLAIN_DTYPES
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.errors import CheckpointError
from moesaic.quant import Format, Plain, Quantized


@final
@dataclass(frozen=True, eq=False)
class Stack:
    """One projection of L experts: every tensor `[L, parts, ...]`, filled matrix by matrix."""

    format: Format
    tensors: Mapping[str, Tensor]
    bias: Tensor | None

    @classmethod
    def for_matrix(
        cls, matrix: StoredMatrix, stored: Quantized, *, num_experts: int, parts: int, device: torch.device
    ) -> Stack:
        """Room for L experts whose first matrix is `stored`. Nothing is filled in."""

        def room(values: Tensor) -> Tensor:
            shape = matrix.piece.parts(values).shape[1:]
            return torch.empty((num_experts, parts, *shape), dtype=values.dtype, device=device)

        tensors = {name: room(values) for name, values in _named(stored).items()}
        bias = _bias(matrix, stored)
        return cls(stored.format, tensors, None if bias is None else room(bias))

    def put(self, place: int, matrix: StoredMatrix, stored: Quantized) -> None:
        """Copy a matrix to the expert at `place`. Raises CheckpointError if it is not stored as the first one was."""
        named, into = _named(stored), dict(self.tensors)
        bias = _bias(matrix, stored)
        if (bias is None) != (self.bias is None):
            raise CheckpointError(f"{matrix.module} has {'no' if bias is None else 'a'} bias, unlike the layer's first")
        if bias is not None and self.bias is not None:
            named, into = {**named, "bias": bias}, {**into, "bias": self.bias}
        piece = matrix.piece
        for name, values in named.items():
            source = piece.parts(values)
            target = into[name][place, piece.start : piece.start + piece.count]
            if stored.format != self.format or source.dtype != target.dtype or source.shape != target.shape:
                raise CheckpointError(
                    f"{_file(matrix)}: {matrix.module} is stored as {stored.format!r}, its {name} {values.dtype} of "
                    f"shape {tuple(values.shape)}, but the layer's first expert as {self.format!r}, its {name} "
                    f"{target.dtype} of shape {tuple(target.flatten(0, 1).shape)}: experts of one layer have one "
                    "format and shape"
                )
            target.copy_(source)

    def stored(self) -> Quantized:
        """All experts, parts above each other."""
        if isinstance(self.format, Plain):
            return Quantized(self.format, self.tensors["data"].flatten(1, 2))
        scales = {name: self.tensors[name] for name in self.format.scale_names}
        return Quantized(self.format, self.tensors["data"], scales).join()

    def joined_bias(self) -> Tensor | None:
        """The biases `[L, rows]`."""
        return None if self.bias is None else self.bias.flatten(1, 2)


def _named(stored: Quantized) -> dict[str, Tensor]:
    return dict(zip(("data", *stored.format.scale_names), stored.tensors, strict=True))


def _bias(matrix: StoredMatrix, stored: Quantized) -> Tensor | None:
    if not (matrix.piece.biased and matrix.has("bias")):
        return None
    return matrix.read("bias", PLAIN_DTYPES, (stored.shape[0],))


def _file(matrix: StoredMatrix) -> object:
    beside = matrix.files.files.under(matrix.module)
    return matrix.files.file(beside[0])
