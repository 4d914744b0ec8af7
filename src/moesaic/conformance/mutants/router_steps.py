"""RouterSteps: a plain router in steps, of which each mutant overrides one; HonestRouter is the control."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.judge_pieces import RouterJudge
from moesaic.conformance.router_checks import RouterSubject
from moesaic.errors import RouterError
from moesaic.routers import Router
from moesaic.routers.fields import count, number, per_expert

BIAS = torch.tensor([0.11, -0.23, 0.31, 0.07, -0.4, 0.19, -0.05, 0.02])
"""A correction bias that changes the choice of most tokens."""

GROUPED: dict[str, Any] = {"bias": BIAS, "num_groups": 4, "top_groups": 2, "scaling_factor": 2.5}
FACTS: dict[str, Any] = {"bias": "bias", "groups": (4, 2), "scaling": 2.5, "renormalised": True, "group_score": "top2"}
"""DeepSeek-V3's rule, and what an author would state of it."""


@dataclass(frozen=True, eq=False)
class RouterSteps(Router):
    """Sigmoid scores, chosen with a bias inside the best groups, weighed without it, renormalised and scaled."""

    num_experts: int = field(default=8, metadata=count())
    top_k: int = field(default=3, metadata=count())
    bias: Tensor = field(default_factory=lambda: torch.zeros(8), metadata=per_expert())
    num_groups: int = field(default=1, metadata=count())
    top_groups: int = field(default=1, metadata=count())
    scaling_factor: float = field(default=1.0, metadata=number(zero=False))

    @override
    def __call__(self, logits: Tensor, token_ids: Tensor | None = None) -> Routing:
        self.check(logits)
        scores = self.score(self.read(logits))
        choice = self.inside(self.choice(scores))
        ids = self.best(choice)
        weights = self.scaled(self.renormalised(self.weigh(scores, choice, ids)))
        return Routing(ids.to(torch.int32), weights)

    def check(self, logits: Tensor) -> None:
        """Refuse logits of other experts."""
        if logits.shape[-1] != self.num_experts:
            raise RouterError(f"{logits.shape[-1]} logits for {self.num_experts} experts")

    def read(self, logits: Tensor) -> Tensor:
        """The logits in float32."""
        return logits if logits.dtype == torch.float64 else logits.float()

    def score(self, logits: Tensor) -> Tensor:
        """What experts are weighed by."""
        return torch.sigmoid(logits)

    def choice(self, scores: Tensor) -> Tensor:
        """What experts are chosen by."""
        return scores + self.bias

    def inside(self, choice: Tensor) -> Tensor:
        """Everything outside the best groups is out of the question."""
        if self.num_groups == 1:
            return choice
        grouped = choice.unflatten(-1, (self.num_groups, -1))
        sums = grouped.nan_to_num(nan=math.inf).topk(2, dim=-1).values.sum(-1)
        best = sums.argsort(dim=-1, descending=True, stable=True)[..., : self.top_groups]
        kept = torch.zeros_like(sums, dtype=torch.bool).scatter(-1, best, True)
        return self.masked(grouped, ~kept.unsqueeze(-1)).flatten(-2)

    def masked(self, grouped: Tensor, outside: Tensor) -> Tensor:
        """What stands for an expert outside of the groups."""
        return grouped.masked_fill(outside, -math.inf)

    def best(self, choice: Tensor) -> Tensor:
        """The ids of the highest, ties to the lower id, NaN as the highest."""
        comparable = choice.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        return comparable.argsort(dim=-1, descending=True, stable=True)[..., : self.top_k]

    def weigh(self, scores: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
        """The scores of the chosen experts."""
        del choice
        return scores.gather(-1, ids)

    def renormalised(self, weights: Tensor) -> Tensor:
        """Weights that sum to 1; zeros stay zeros."""
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0)

    def scaled(self, weights: Tensor) -> Tensor:
        """Times the scaling factor."""
        return weights * self.scaling_factor


@final
@dataclass(frozen=True, eq=False)
class HonestRouter(RouterSteps):
    """Nothing is wrong."""


def of_router(name: str, subject: Router, check: str, control: Router, **facts: Any) -> Mutant:
    """A mutant of `control`, of which the author states `facts`."""
    return Mutant(
        name=name,
        meaning=(subject.__class__.__doc__ or name).splitlines()[0],
        check=check,
        subject=RouterSubject(subject, **facts),
        control=RouterSubject(control, **facts),
        judge=RouterJudge(),
    )
