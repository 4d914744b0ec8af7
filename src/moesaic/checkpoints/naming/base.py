"""Naming: how a family of models names the tensors of its experts, and how gate, up and down lie in them.

E experts of a layer, I intermediate size, H hidden size. Rows of a projection are its outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor

from moesaic.checkpoints.files import OpenFiles


@final
@dataclass(frozen=True)
class TensorNames:
    """The names of one matrix's tensors: `stem.weight`, `stem.weight_scale`; `bare`: the weight is `stem` alone."""

    stem: str
    separator: str = "."
    bare: bool = False

    def of(self, suffix: str) -> str:
        """The full name of the tensor that a convention calls `suffix`."""
        return self.stem if self.bare and suffix == "weight" else f"{self.stem}{self.separator}{suffix}"

    def suffix(self, name: str) -> str:
        """The opposite of `of`."""
        return "weight" if self.bare and name == self.stem else name.removeprefix(self.stem + self.separator)


@final
@dataclass(frozen=True)
class Piece:
    """One stored matrix of an expert: `count` parts of a projection from part `start` on (gate is 0, up is 1).

    `expert`: its place along the first dimension of stacked tensors, None where it has tensors of its own.
    `flattened`: the experts, so many, are stacked along the rows. `transposed`: stored `[..., columns, rows]`.
    `interleaved`: its two parts alternate row by row. `biased`: a bias may stand beside it.
    """

    names: TensorNames
    projection: Literal["gate_up", "down"]
    start: int = 0
    count: int = 1
    expert: int | None = None
    flattened: int | None = None
    transposed: bool = False
    interleaved: bool = False
    biased: bool = True

    def parts(self, rows: Tensor) -> Tensor:
        """`[rows, ...]` as `[count, rows of one part, ...]`, a view."""
        if self.count == 1:
            return rows.unsqueeze(0)
        if self.interleaved:
            return rows.unflatten(0, (-1, self.count)).transpose(0, 1)
        return rows.unflatten(0, (self.count, -1))

    def rows(self, parts: Tensor) -> Tensor:
        """The opposite of `parts`."""
        return (parts.transpose(0, 1) if self.interleaved else parts).flatten(0, 1)


@final
@dataclass(frozen=True)
class Arrangement:
    """What only the tensors say: whether there is a gate, and whether matrices are stored transposed."""

    gated: bool
    transposed: bool = False


@dataclass(frozen=True)
class Naming(ABC):
    """How one family names its experts. To add one, copy `per_expert.py` and list an instance in `NAMINGS`."""

    @abstractmethod
    def block(self, name: str) -> str | None:
        """What stands before the experts' own part in a tensor's `name`; None for a tensor of another kind."""

    @abstractmethod
    def suits(self, config: Mapping[str, Any]) -> bool:
        """Whether a model of this configuration may use these names."""

    @abstractmethod
    def num_experts(self, block: str, files: OpenFiles, config: Mapping[str, Any]) -> int:
        """E as the tensors of `block` say."""

    @abstractmethod
    def arrangement(self, block: str, files: OpenFiles) -> Arrangement:
        """Raises CheckpointError if the tensors of `block` contradict each other."""

    @abstractmethod
    def written(self, *, gated: bool) -> Arrangement:
        """How a layer is written."""

    @abstractmethod
    def pieces(self, block: str, expert: int, num_experts: int, arrangement: Arrangement) -> tuple[Piece, ...]:
        """The matrices that hold one expert."""

    def norm(self, block: str) -> str | None:
        """The name of the output norm's weight, to which one is added; None if the family has no such norm."""
        del block
        return None
