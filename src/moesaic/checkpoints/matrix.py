"""StoredMatrix: one piece of an expert as the tensors of a checkpoint, read one by one and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.checkpoints.files import OpenFiles
from moesaic.checkpoints.naming import Piece
from moesaic.errors import CheckpointError

IGNORED: frozenset[str] = frozenset({"input_scale", "input_global_scale", "input_zero_point", "k_scale", "v_scale"})
"""Tensors beside a weight that do not belong to it: scales of inputs come from the rows."""

E8M0: tuple[torch.dtype, ...] = (torch.uint8, torch.float8_e8m0fnu)
"""The dtypes under which files keep codes of powers of two."""


@final
@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """A matrix `[N, K]` in files: `read` and `scale` give its tensors, `fault` makes the error about one of them."""

    files: OpenFiles
    piece: Piece

    @property
    def module(self) -> str:
        """The name that a configuration knows the matrix by."""
        return self.piece.names.stem

    def has(self, suffix: str) -> bool:
        """Whether the checkpoint has that tensor."""
        return self.piece.names.of(suffix) in self.files.files.where

    def one_of(self, suffixes: tuple[str, ...]) -> str:
        """The one of `suffixes` that the checkpoint has; the first if it has none, to be missed when it is read."""
        found = [*filter(self.has, suffixes)] or [suffixes[0]]
        if len(found) > 1:
            raise self.fault(
                found[1], f"stands beside {self.piece.names.of(found[0])}", "to be the only scale of its weight"
            )
        return found[0]

    def dtype(self, suffix: str) -> torch.dtype:
        """The dtype of a tensor."""
        return self.files.read(self.piece.names.of(suffix), self.piece.expert, self.piece.flattened).dtype

    def read(self, suffix: str, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...]) -> Tensor:
        """This expert's part of a tensor, a view of the file. It has one of `dtypes`, and of `shapes` if any are given.

        Raises CheckpointError naming file and tensor, with what was found and what is needed.
        """
        piece, name = self.piece, self.piece.names.of(suffix)
        found = self.files.read(name, piece.expert, piece.flattened)
        if found.dtype not in dtypes or (shapes and tuple(found.shape) not in shapes):
            needed = " or ".join(map(str, dtypes)) + (f" of shape {' or '.join(map(str, shapes))}" if shapes else "")
            raise self.fault(suffix, f"is {found.dtype} of shape {tuple(found.shape)}", needed)
        return found

    def weight(self, suffix: str, *dtypes: torch.dtype) -> Tensor:
        """The matrix that `suffix` holds, rows first."""
        found = self.read(suffix, dtypes)
        if found.ndim != 2:
            raise self.fault(suffix, f"is {found.ndim}-dimensional, {tuple(found.shape)}", "rows and columns")
        return found.mT if self.piece.transposed else found

    def scale(
        self, suffix: str, dtypes: tuple[torch.dtype, ...], grid: tuple[int, ...], *also: tuple[int, ...]
    ) -> Tensor:
        """Scales as `grid`, stored so or in one of the shapes `also`; finite and above zero. Codes are read as E8M0."""
        found = self.read(suffix, dtypes, grid, *also).reshape(grid)
        found = found.view(torch.float8_e8m0fnu) if found.dtype == torch.uint8 else found
        numbers = found.to(torch.float32)
        wrong = ~(numbers.isfinite() & (numbers > 0))
        if bool(wrong.any()):
            index: list[int] = wrong.nonzero()[0].tolist()
            raise self.fault(
                suffix, f"{index} is {numbers[tuple(index)].item()}", "scales that are finite and above zero"
            )
        return found

    def surplus(self, known: tuple[str, ...]) -> str | None:
        """The suffix of a tensor beside this matrix that is neither `known` nor to be ignored."""
        names = self.piece.names
        beside = [*self.files.files.under(names.stem + names.separator)]
        found = {names.suffix(name) for name in beside} - {*known} - IGNORED
        return min(found, default=None)

    def fault(self, suffix: str, found: str, needed: str) -> CheckpointError:
        """The error that says what a tensor is and what it has to be."""
        name = self.piece.names.of(suffix)
        expert = "" if self.piece.expert is None else f" of expert {self.piece.expert}"
        separator = "" if found.startswith("[") else " "
        return CheckpointError(f"{self.files.file(name)}: {name}{expert}{separator}{found}, but it needs {needed}")
