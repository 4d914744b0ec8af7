"""Sigmoid routers: every expert scored by itself, selected with or without a correction bias."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.routers.base import Router, float_logits
from moesaic.routers.fields import count, number, per_expert, switch
from moesaic.routers.selection import top_ids, weigh


@final
@dataclass(frozen=True)
class SigmoidTopK(Router):
    """The K highest logits, weighed by `s = sigmoid(logit)`, if `renormalize` over (their sum + epsilon); scaled.

    Llama-4: `SigmoidTopK(16, 1)`; that its weight multiplies the expert's input is the Problem's `weight_on_input`.
    Selected by the logit, because a float32 sigmoid is 1 for every logit above 17. Source: transformers `Llama4Router`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    renormalize: bool = field(default=False, kw_only=True, metadata=switch())
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        logits = float_logits(self, logits, self.num_experts)
        return weigh(
            torch.sigmoid(logits),
            top_ids(logits, self.top_k),
            renormalize=self.renormalize,
            epsilon=self.epsilon,
            scaling_factor=self.scaling_factor,
        )


@final
@dataclass(frozen=True, eq=False)
class BiasedSigmoidTopK(Router):
    """`s = sigmoid(logit)`; the K highest s + bias, weighed by s over (the sum of the K + epsilon); scaled.

    The bias selects and never weighs. Kimi-K2, GLM-4.5, Nemotron-3, MiMo-V2: epsilon 1e-20; MiniMax-M2, Step-3.7: 0;
    Muse-Spark: 1e-15. With several groups: `GroupedSigmoidTopK`. Source: transformers `MiniMaxM2TopKRouter`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    bias: Float[Tensor, " E"] = field(kw_only=True, metadata=per_expert())
    renormalize: bool = field(default=True, kw_only=True, metadata=switch())
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.sigmoid(float_logits(self, logits, self.num_experts))
        return weigh(
            scores,
            top_ids(scores + self.bias, self.top_k),
            renormalize=self.renormalize,
            epsilon=self.epsilon,
            scaling_factor=self.scaling_factor,
        )
