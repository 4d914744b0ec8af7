"""DrawnLayer: the weights of one layer, and who was bound to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from layers.cells import Cell
from layers.contender import Bound, Contender
from layers.failing import BoundBeforeError, described

from moesaic import ExpertWeights, Problem


@final
@dataclass(eq=False)
class DrawnLayer:
    """Kept for all numbers of tokens that follow each other."""

    scheme: str
    shape: str
    weights: ExpertWeights
    problem: Problem
    done: dict[Contender, Bound] = field(default_factory=dict)
    failed: dict[Contender, str] = field(default_factory=dict)

    def serves(self, cell: Cell) -> bool:
        """Whether the cell is of this layer."""
        return (self.scheme, self.shape) == (cell.scheme, cell.shape)

    def bound(self, contender: Contender) -> Bound:
        """Once for each contender. Raises what it raised, the second time as BoundBeforeError with the reason."""
        if contender in self.failed:  # an import that fails takes seconds
            raise BoundBeforeError(self.failed[contender])
        if contender not in self.done:
            try:
                self.done[contender] = contender.bound(self.weights, self.problem)
            except Exception as fault:
                self.failed[contender] = described(fault)
                raise
        return self.done[contender]
