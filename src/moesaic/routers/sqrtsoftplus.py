"""Routers that score with the square root of softplus (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.routers.base import Router, float_logits
from moesaic.routers.fields import count, number, per_expert
from moesaic.routers.selection import top_ids, weigh


def sqrt_softplus(logits: Tensor) -> Tensor:
    """`sqrt(log(1 + exp(logits)))`; +inf gives +inf, -inf gives 0.

    Above its threshold softplus is its argument: torch's own, 20, is off by 1e-10 there, which float64 sees.
    """
    return torch.sqrt(functional.softplus(logits, threshold=40.0))


@final
@dataclass(frozen=True, eq=False)
class SqrtSoftplusTopK(Router):
    """`s = sqrt(softplus(logit))`; the K highest s + bias, weighed by s over (the sum of the K + epsilon); scaled.

    The bias selects and never weighs. DeepSeek-V4: epsilon 1e-20, scaling_factor 1.5 (Flash) or 2.5 (Pro).
    Source: transformers `DeepseekV4TopKRouter`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    bias: Float[Tensor, " E"] = field(kw_only=True, metadata=per_expert())
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = sqrt_softplus(float_logits(self, logits, self.num_experts))
        ids = top_ids(scores + self.bias, self.top_k)
        return weigh(scores, ids, renormalize=True, epsilon=self.epsilon, scaling_factor=self.scaling_factor)
