"""Granularity: which values share one scale, as tiles of the last two dimensions, short at the ends.

Scales of a tensor `[..., rows, columns]` are a grid `[..., ceil(rows / r), ceil(columns / c)]` for tiles of r x c.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from moesaic.checks import whole_number
from moesaic.errors import FormatError


@dataclass(frozen=True)
class Granularity(ABC):
    """Which values share one scale. A tile that reaches over the end of the tensor is short, never refused."""

    @abstractmethod
    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of one tile in a matrix `[rows, columns]`; both at least 1."""

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the scales of a tensor of `shape`."""
        rows, columns = self.tile(*shape[-2:])
        return (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns))

    def largest(self, values: Tensor) -> Tensor:
        """The largest magnitude in each tile, in the shape of the grid."""
        return self._tiled(values).abs().amax((-3, -1))

    def extremes(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The lowest and the highest value in each tile, zero among them, in the shape of the grid."""
        tiles = self._tiled(values)
        return tiles.amin((-3, -1)).clamp(max=0), tiles.amax((-3, -1)).clamp(min=0)

    def spread(self, scales: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Each tile's scale at each of its values; broadcasts to `shape`, and has a full size only where it must."""
        for dimension, size in zip((-2, -1), self.tile(*shape[-2:]), strict=True):
            if size > 1 and scales.shape[dimension] > 1:
                scales = scales.repeat_interleave(size, dimension).narrow(dimension, 0, shape[dimension])
        return scales

    def _tiled(self, values: Tensor) -> Tensor:
        """`[..., grid rows, r, grid columns, c]`, filled up with zeros."""
        rows, columns = values.shape[-2:]
        r, c = self.tile(rows, columns)
        grid = self.grid(tuple(values.shape))
        filled = pad(values, (0, grid[-1] * c - columns, 0, grid[-2] * r - rows))
        return filled.unflatten(-1, (grid[-1], c)).unflatten(-3, (grid[-2], r))


@final
@dataclass(frozen=True)
class PerTensor(Granularity):
    """One scale for each matrix: each expert's gate, up and down; all live rows of an input."""

    @override
    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return max(rows, 1), max(columns, 1)

    @override
    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], 1, 1)  # also where there are no rows


@final
@dataclass(frozen=True)
class PerRow(Granularity):
    """One scale for each row: per (output) channel of a weight `[N, K]`, per token of an input `[T, K]`."""

    @override
    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return 1, max(columns, 1)


@final
@dataclass(frozen=True)
class PerGroup(Granularity):
    """One scale for `columns` neighbours in a row."""

    columns: int

    def __post_init__(self) -> None:
        columns = whole_number("PerGroup", "columns", self.columns, FormatError)
        object.__setattr__(self, "columns", columns)

    @override
    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return 1, self.columns


@final
@dataclass(frozen=True)
class PerBlock(Granularity):
    """One scale for a block of `rows` x `columns`. Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.2."""

    rows: int = 128
    columns: int = 128

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            object.__setattr__(self, name, whole_number("PerBlock", name, getattr(self, name), FormatError))
        if self.rows == 1:
            raise FormatError(f"PerBlock.rows is 1, which is PerGroup({self.columns}): write that, to have one name")

    @override
    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return self.rows, self.columns
