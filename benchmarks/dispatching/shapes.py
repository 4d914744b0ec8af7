"""Shapes of layers that are spread over ranks, and their weights, which are the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from moesaic import Experts, ExpertWeights, Layout, Problem, Standard, SwiGLU, bind
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.placement import Placement


@final
@dataclass(frozen=True, kw_only=True)
class Shape:
    """The experts of one layer."""

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int

    def weights(self, device: torch.device | str, dtype: torch.dtype) -> ExpertWeights:
        """Weights of all experts, under which rows keep their size."""
        experts, hidden, inner = self.num_experts, self.hidden_size, self.intermediate_size
        generator = torch.Generator(device).manual_seed(7)
        gate_up = torch.empty(experts, 2 * inner, hidden, device=device, dtype=dtype)
        down = torch.empty(experts, hidden, inner, device=device, dtype=dtype)
        gate_up.normal_(0, hidden**-0.5, generator=generator)
        down.normal_(0, inner**-0.5, generator=generator)
        return ExpertWeights.plain(gate_up, down)

    def bound(self, weights: ExpertWeights, layout: Layout) -> Experts:
        """These of the experts, by the backend that moesaic prefers."""
        problem = Problem(
            num_experts=len(weights.gate_up.data),
            top_k=self.top_k,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            activation=SwiGLU(),
            dtype=weights.gate_up.data.dtype,
            layout=layout,
        )
        return bind(problem, weights)


SHAPES = {
    "qwen3_30b": Shape(num_experts=128, top_k=8, hidden_size=2048, intermediate_size=768),
    "dsv3": Shape(num_experts=256, top_k=8, hidden_size=7168, intermediate_size=2048),
    "qwen3_30b_small": Shape(num_experts=32, top_k=8, hidden_size=128, intermediate_size=48),
    "dsv3_small": Shape(num_experts=64, top_k=8, hidden_size=448, intermediate_size=128),
    "tiny": Shape(num_experts=12, top_k=3, hidden_size=72, intermediate_size=40),
}
"""By name. A small one has a quarter of the experts, and a sixteenth of both sizes: for processes on one CPU."""


@final
@dataclass(frozen=True, eq=False)
class Job:
    """One shape on these ranks: each holds all experts, as one rank alone would, and binds its own of a placement."""

    name: str
    shape: Shape
    ranks: Ranks
    weights: ExpertWeights
    whole: Experts

    @classmethod
    def of(cls, name: str, ranks: Ranks, dtype: torch.dtype) -> Job:
        """With fresh weights."""
        shape = SHAPES[name]
        weights = shape.weights(ranks.device, dtype)
        return cls(name, shape, ranks, weights, shape.bound(weights, Standard()))

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and tokens."""
        return self.weights.gate_up.data.dtype

    def experts(self, placement: Placement, layout: Layout) -> Experts:
        """Those that `placement` gives to this rank; all of them where it is for one rank."""
        own = placement.experts[self.ranks.rank]
        alone = own == tuple(range(self.shape.num_experts))
        return self.shape.bound(self.weights if alone else self.weights.select(own), layout)
