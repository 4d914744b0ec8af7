"""Softmax routers: over all experts before the selection, or over the selected experts after it."""

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
from moesaic.routers.selection import renormalized, top_ids, weigh


@final
@dataclass(frozen=True)
class SoftmaxTopK(Router):
    """`p = softmax(logits)` over E; the K highest p, if `renormalize` divided by (their sum + epsilon); scaled.

    Mixtral, Qwen3, Qwen3-Next: `renormalize=True`; Qwen1.5-MoE, Qwen2-MoE, OLMoE, Jamba, DeepSeek-V2-Lite: False.
    Probabilities that round to one float are a tie. Source: transformers `Qwen3MoeTopKRouter`.

    >>> import torch
    >>> routing = SoftmaxTopK(3, 2, renormalize=True)(torch.tensor([[0.5, 0.2, 0.3]]).log())
    >>> routing.topk_ids
    tensor([[0, 2]], dtype=torch.int32)
    >>> routing.topk_weights
    tensor([[0.6250, 0.3750]])
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    renormalize: bool = field(default=False, kw_only=True, metadata=switch())
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.softmax(float_logits(self, logits, self.num_experts), dim=-1)
        return weigh(
            scores,
            top_ids(scores, self.top_k),
            renormalize=self.renormalize,
            epsilon=self.epsilon,
            scaling_factor=self.scaling_factor,
        )


@final
@dataclass(frozen=True, eq=False)
class BiasedSoftmaxTopK(Router):
    """`p = softmax(logits)` over E; the K highest p + bias, weighed by p / max(sum of the K, floor); scaled.

    The bias selects and never weighs. Ernie-4.5: `floor=1e-12`, bias `moe_statics.e_score_correction_bias[0]`.
    Source: transformers `Ernie4_5_MoeTopKRouter`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    bias: Float[Tensor, " E"] = field(kw_only=True, metadata=per_expert())
    floor: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.softmax(float_logits(self, logits, self.num_experts), dim=-1)
        ids = top_ids(scores + self.bias, self.top_k)
        weights = renormalized(scores.gather(-1, ids), floor=self.floor)
        return Routing(ids.to(torch.int32), weights * self.scaling_factor)


@final
@dataclass(frozen=True, eq=False)
class ExpertScaledSoftmaxTopK(Router):
    """`p = softmax(logits)` over E; the K highest p, each weighed by p / (sum of the K) * expert_scale[expert].

    Gemma-4: expert_scale is `per_expert_scale`; the norm and scale before the projection are not the router's.
    Source: transformers `Gemma4TextRouter`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    expert_scale: Float[Tensor, " E"] = field(kw_only=True, metadata=per_expert())

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.softmax(float_logits(self, logits, self.num_experts), dim=-1)
        ids = top_ids(scores, self.top_k)
        weights = renormalized(scores.gather(-1, ids)) * self.expert_scale.to(scores.dtype)[ids]
        return Routing(ids.to(torch.int32), weights)


@final
@dataclass(frozen=True)
class TopKSoftmax(Router):
    """The K highest logits, weighed by softmax over those K (gpt-oss, whose router bias is in the logits already).

    The weights are those of `SoftmaxTopK` with `renormalize=True` but for rounding; the selection differs where
    probabilities round to a tie. Source: transformers `GptOssTopKRouter`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = float_logits(self, logits, self.num_experts)
        ids = top_ids(scores, self.top_k)
        return Routing(ids.to(torch.int32), torch.softmax(scores.gather(-1, ids), dim=-1))
