"""moesaic's backends as contenders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

from layers.contender import Bound, Contender

from moesaic import Backend, ExpertWeights, Problem, bind


@final
@dataclass(frozen=True)
class Own(Contender):
    """One backend, which must give the same bits twice."""

    name: str
    backend: Backend[Any]
    tolerance: float | None = 0.01
    own: ClassVar[bool] = True

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """By `bind`."""
        layer = bind(problem, weights, backends=(self.backend,))
        return lambda batch: partial(layer, batch)
