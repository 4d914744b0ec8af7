"""Contender: who computes a layer, moesaic or a peer, and how its answer is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from layers.clock import Call
from layers.exact import Activation, swiglu

from moesaic import ExpertWeights, Problem, StandardBatch

Bound = Callable[[StandardBatch], Call]
"""Prepares for one batch what a call is not to be charged for."""


class Contender(ABC):
    """One way to compute a layer. Frozen, so that what is bound once is kept for every number of tokens.

    `scope`: "layer", from tokens to tokens with routing metadata, activation and weighted sum; "gemms", the two grouped
    products of rows in order; "bound", what no layer is expected to beat. `tolerance`: the error allowed against
    float32, None where an answer cannot be compared. `activation`: what it computes between the products.
    """

    name: str
    tolerance: float | None
    scope: ClassVar[str] = "layer"
    own: ClassVar[bool] = False
    activation: ClassVar[Activation] = staticmethod(swiglu)

    @property
    def missing(self) -> str:
        """Why it cannot run on this machine at all; empty if it may."""
        return ""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of what it is made of."""
        return {}

    def fits(self, problem: Problem, tokens: int) -> bool:
        """Whether it means something for this problem."""
        del problem, tokens
        return True

    def remarks(self, problem: Problem) -> Mapping[str, Any]:
        """What its rows say beside the figures; asked once it is bound."""
        del problem
        return {}

    @abstractmethod
    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """Once for a layer."""
