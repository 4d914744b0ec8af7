"""Group-limited routers: the best groups of experts first, then the best experts inside those groups.

Dimensions: G groups of E / G neighbouring experts each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.errors import RouterError
from moesaic.routers.base import Router, float_logits
from moesaic.routers.fields import check_fields, count, number, per_expert, switch
from moesaic.routers.selection import top_ids, weigh


@final
@dataclass(frozen=True, eq=False)
class GroupedSigmoidTopK(Router):
    """`BiasedSigmoidTopK` inside the `top_groups` best groups; a group scores the sum of its two highest s + bias.

    DeepSeek-V3: `GroupedSigmoidTopK(256, 8, num_groups=8, top_groups=4, bias=..., epsilon=1e-20,
    scaling_factor=2.5)`. The other groups count as -inf, not 0, which a negative bias would undercut.
    Source: transformers `DeepseekV3TopkRouter`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    num_groups: int = field(kw_only=True, metadata=count(at_most="num_experts"))
    top_groups: int = field(kw_only=True, metadata=count(at_most="num_groups"))
    bias: Float[Tensor, " E"] = field(kw_only=True, metadata=per_expert())
    renormalize: bool = field(default=True, kw_only=True, metadata=switch())
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    def __post_init__(self) -> None:
        check_fields(self)
        if _group_size(self) < 2:
            raise RouterError(
                f"GroupedSigmoidTopK.num_groups is {self.num_groups} for {self.num_experts} experts, "
                "but a group's score is the sum of two experts: it needs at least 2 experts in a group"
            )

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.sigmoid(float_logits(self, logits, self.num_experts))
        grouped = (scores + self.bias).unflatten(-1, (self.num_groups, -1))
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
        return weigh(
            scores,
            top_ids(_inside_best(grouped, group_scores, self.top_groups), self.top_k),
            renormalize=self.renormalize,
            epsilon=self.epsilon,
            scaling_factor=self.scaling_factor,
        )


@final
@dataclass(frozen=True)
class GroupedSoftmaxTopK(Router):
    """`SoftmaxTopK` inside the `top_groups` best groups; a group scores its highest probability.

    DeepSeek-V2: `GroupedSoftmaxTopK(160, 6, num_groups=8, top_groups=3, scaling_factor=16.0)`.
    Source: transformers `DeepseekV2TopkRouter`, topk_method "group_limited_greedy".
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count(at_most="num_experts"))
    num_groups: int = field(kw_only=True, metadata=count(at_most="num_experts"))
    top_groups: int = field(kw_only=True, metadata=count(at_most="num_groups"))
    renormalize: bool = field(default=False, kw_only=True, metadata=switch())
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    def __post_init__(self) -> None:
        check_fields(self)
        _group_size(self)

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.softmax(float_logits(self, logits, self.num_experts), dim=-1)
        grouped = scores.unflatten(-1, (self.num_groups, -1))
        return weigh(
            scores,
            top_ids(_inside_best(grouped, grouped.amax(dim=-1), self.top_groups), self.top_k),
            renormalize=self.renormalize,
            epsilon=self.epsilon,
            scaling_factor=self.scaling_factor,
        )


def _group_size(router: GroupedSigmoidTopK | GroupedSoftmaxTopK) -> int:
    """Experts in a group; raises RouterError unless the groups are equal and the kept ones hold `top_k` experts."""
    owner = type(router).__name__
    size, left_over = divmod(router.num_experts, router.num_groups)
    if left_over:
        raise RouterError(
            f"{owner}.num_groups is {router.num_groups}, but {router.num_experts} experts do not divide into "
            f"{router.num_groups} equal groups"
        )
    if router.top_k > router.top_groups * size:
        raise RouterError(
            f"{owner}.top_k is {router.top_k}, but top_groups={router.top_groups} groups of {size} experts hold "
            f"only {router.top_groups * size}"
        )
    return size


def _inside_best(grouped: Tensor, group_scores: Tensor, top_groups: int) -> Tensor:
    """`grouped` [T, G, E / G] as [T, E], with -inf outside the `top_groups` highest of `group_scores` [T, G]."""
    best = top_ids(group_scores, top_groups)
    kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter(-1, best, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(-2)
