"""FormatSubject: a format under test, with the facts about its rounding that its author states."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.conformance.piece import close
from moesaic.quant import Format, Quantized

SEARCHED = 1024
"""Rows and columns up to which the tile of a scale is looked for; a larger one counts as the whole matrix."""

SHARES: tuple[tuple[int, float], ...] = ((16, 2.0**-8), (8, 2.0**-4), (4, 2.0**-2))
"""Bits of a value, and the error that is allowed where none is stated: of bfloat16, E4M3 and E2M1, with its scale."""


@final
@dataclass(frozen=True, eq=False)
class StoredExample:
    """Stored numbers from the publication, and the values that they mean: one matrix, rows of columns."""

    data: Tensor
    scales: dict[str, Tensor]
    values: tuple[tuple[float, ...], ...]


@final
@dataclass(frozen=True)
class FormatSubject:
    """`error`: the largest error of a value, as a share of the largest magnitude in its tile; 0 for a format that loses
    nothing, by default what its bits suggest. `powers`: the powers of two by which a tensor of normal numbers can be
    multiplied so that the stored values are multiplied exactly. `idempotent`: storing what was read back changes
    nothing. `exact`: values that come back as they were where the largest of them is in the tile.
    """

    format: Format
    error: float | None = None
    powers: tuple[int, int] = (-12, 10)
    idempotent: bool = True
    exact: tuple[float, ...] = ()
    examples: tuple[StoredExample, ...] = ()

    @property
    def allowed(self) -> float:
        """The error that is stated, or what the bits of a value suggest."""
        if self.error is not None:
            return self.error
        if self.format.storage((8, 8), torch.float32)["data"].dtype == torch.float32:
            return 0.0
        bits = self.format.storage((64, 64), torch.float32)["data"].num_bytes * 8 // 64**2
        return next((share for known, share in SHARES if bits >= known), 1.0)

    @property
    def tile(self) -> tuple[int | None, int | None]:
        """Rows and columns that share the finest scale, found from the shapes of its storage; None for all of them."""
        rows = _first(lambda n: self._grid((n + 1, 2))[0] > 1)
        pairs = _first(lambda n: self._grid((1, 2 * n + 2))[1] > 1)
        return rows, None if pairs is None else 2 * pairs

    def _grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        stored = self.format.storage(shape, torch.float32)
        grids = [tensor.shape[-2:] for name, tensor in stored.items() if name != "data"]
        finest = max(grids, key=lambda grid: grid[0] * grid[1], default=(1, 1))
        return finest[0], finest[1]

    def tiles(self, shape: tuple[int, int]) -> Tensor:
        """The number of each value's tile, `shape`."""
        rows, columns = (size or SEARCHED for size in self.tile)
        down, across = torch.arange(shape[0]) // rows, torch.arange(shape[1]) // columns
        return down.unsqueeze(-1) * (shape[1] + 1) + across

    def largest(self, values: Tensor) -> Tensor:
        """The largest magnitude of each value's tile, in the shape of `values`."""
        numbers = self.tiles((values.shape[0], values.shape[1])).flatten()
        most = torch.zeros(int(numbers.max()) + 1, dtype=torch.float64)
        most = most.scatter_reduce(0, numbers, values.flatten().double().abs(), "amax")
        return most[numbers].view(values.shape)

    def read_back(self, values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """`values` stored and read."""
        return self.format.quantize(values).dequantize(dtype)

    def within(self, values: Tensor, what: str) -> Quantized:
        """`values` as stored. Raises Nonconformance where one that is read back is further off than is allowed."""
        stored = self.format.quantize(values)
        allowed = self.largest(values) * self.allowed * (1 + 1e-5)
        close(stored.dequantize(torch.float32), values, allowed, f"{what} in {self.format!r}")
        return stored

    def spanning(self, tiles: int) -> tuple[int, int]:
        """The shape of a matrix that is so many tiles high and wide; where a tile is the whole, a few rows, columns."""
        rows, columns = self.tile
        return (tiles * rows if rows else 5, tiles * columns if columns else 96)


def _first(holds: Callable[[int], bool]) -> int | None:
    """The least number from 1 on for which `holds`, which holds for every larger one; None if there is none."""
    found = bisect_left(range(1, SEARCHED), True, key=holds) + 1
    return found if found < SEARCHED else None


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
