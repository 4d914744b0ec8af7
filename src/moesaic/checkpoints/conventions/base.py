"""Convention: how one matrix is kept as tensors of a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.errors import CheckpointError
from moesaic.quant import Format, Quantized


@dataclass(frozen=True)
class Convention(ABC):
    """From tensors on disk to a stored matrix and back, without a rounding: bits are moved, never computed with.

    N rows (outputs) and K columns (inputs). To add one, copy `scaled.py`.
    """

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """Every tensor that may stand beside the name of a matrix, biases not counted."""

    @abstractmethod
    def read(self, matrix: StoredMatrix) -> Quantized:
        """The matrix `[N, K]` in its own format; tensors may be views of the file. Raises CheckpointError."""

    @abstractmethod
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        """The tensors, by suffix, of which `read` makes `stored` `[N, K]`. Raises CheckpointError for other formats."""

    def refuse(self, stored: Format, needed: str) -> CheckpointError:
        """The error about a format that this convention does not hold."""
        return CheckpointError(f"the weights are stored as {stored!r}, but {self!r} holds {needed}")
