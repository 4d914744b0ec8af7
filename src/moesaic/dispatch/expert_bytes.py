"""ExpertBytes: all tensors of one expert as one run of bytes, of which chunks are read and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import UInt8
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class ExpertBytes:
    """`pieces`: the bytes of each tensor, which lie behind one another as far as this is concerned."""

    pieces: tuple[UInt8[Tensor, " _"], ...]

    @classmethod
    def of(cls, stacks: Sequence[Tensor], local_id: int) -> ExpertBytes:
        """Those of expert `local_id` of tensors `[L, ...]`: views of what is contiguous, copies of the rest."""
        rows = (stack[local_id].detach().contiguous().flatten() for stack in stacks)
        return cls(tuple(row.view(torch.uint8) for row in rows))

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(map(len, self.pieces))

    def read(self, start: int, stop: int) -> UInt8[Tensor, " B"]:
        """A copy of the bytes from `start` to `stop`, which may lie in several tensors."""
        return torch.cat([piece[first:last] for piece, first, last in self._within(start, stop)])

    def write(self, start: int, values: UInt8[Tensor, " B"]) -> None:
        """Put `values` at `start`."""
        at = 0
        for piece, first, last in self._within(start, start + len(values)):
            piece[first:last] = values[at : at + last - first]
            at += last - first

    def _within(self, start: int, stop: int) -> Iterator[tuple[Tensor, int, int]]:
        """The pieces that have bytes from `start` to `stop`, and which of theirs those are."""
        for piece in self.pieces:
            if start < len(piece) and stop > 0:
                yield piece, max(start, 0), min(stop, len(piece))
            start, stop = start - len(piece), stop - len(piece)
