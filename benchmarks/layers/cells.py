"""Cell: one layer with one number of tokens; and what is measured of a family of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dispatching.shapes import Shape
from layers.contender import Contender
from layers.shapes import SHAPES

from moesaic import ExpertWeights, Plain, Problem, Scheme, SwiGLU


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """`scheme`: how weights are stored, by name."""

    shape: str
    scheme: str
    tokens: int

    @property
    def sizes(self) -> Shape:
        """Of the shape."""
        return SHAPES[self.shape]

    @property
    def inputs(self) -> int:
        """Batches that take turns in one graph: enough that small layers do not find their weights in L2."""
        return 16 if self.tokens <= 8 else 4 if self.tokens <= 1024 else 2

    def __str__(self) -> str:
        return f"{self.shape} {self.scheme} T={self.tokens}"


class Family(ABC):
    """Layers that are stored alike, and who computes them. `checked_tokens`: how many are compared with float32."""

    checked_tokens: int

    def scheme(self, cell: Cell) -> Scheme:
        """How weights and rows are stored: plainly."""
        del cell
        return Scheme(Plain(), Plain())

    def problem(self, cell: Cell) -> Problem:
        """The same for every number of tokens, in bfloat16."""
        shape = cell.sizes
        return Problem(
            num_experts=shape.num_experts,
            top_k=shape.top_k,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            activation=SwiGLU(),
            scheme=self.scheme(cell),
        )

    @abstractmethod
    def weights(self, cell: Cell, device: str) -> ExpertWeights:
        """Drawn; the same for every number of tokens."""

    @abstractmethod
    def own(self, cell: Cell, problem: Problem, device: str) -> Sequence[Contender]:
        """The layer as it is, then what it did not choose where the choice is close."""

    @abstractmethod
    def peers(self, scheme: str) -> Sequence[Contender]:
        """All that are known."""


def dealt(cells: Sequence[Cell], index: int, count: int) -> list[Cell]:
    """Part `index` of `count`, of about equal work: few and many tokens in each; cells of a layer side by side."""
    by_size = sorted(cells, key=lambda cell: cell.tokens)
    turns = [by_size[first : first + count] for first in range(0, len(by_size), count)]
    own = [
        turn[place] for n, turn in enumerate(turns) if (place := index if n % 2 == 0 else count - 1 - index) < len(turn)
    ]
    return sorted(own, key=lambda cell: (cell.scheme, cell.shape))


def ordered(layers: Sequence[tuple[str, str]], tokens: Sequence[int], *, tokens_first: bool) -> list[Cell]:
    """Cells of (scheme, shape) pairs: all tokens of a layer in turn, or all layers of a number of tokens."""
    cells = [Cell(shape=shape, scheme=scheme, tokens=number) for scheme, shape in layers for number in tokens]
    return sorted(cells, key=lambda cell: tokens.index(cell.tokens)) if tokens_first else cells
