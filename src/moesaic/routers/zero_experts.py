"""Routers with "zero experts": identity experts beside the real ones, which cost nothing (LongCat-Flash).

Dimensions: Z zero experts, whose logits come after those of the E real experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.errors import RouterError
from moesaic.routers.base import Router, float_logits
from moesaic.routers.fields import check_fields, count, number, per_expert
from moesaic.routers.selection import top_ids


@final
@dataclass(frozen=True, eq=False)
class ZeroExpertTopK(Router):
    """`p = softmax(logits)` over E + Z; the K highest p + bias, weighed by p, not renormalised; scaled.

    A slot that goes to a zero expert (id E or above) comes back inactive (id -1, weight 0); the weights of a token's
    zero experts are summed in `Routing.identity_weights`, the weight of the hidden state itself.
    LongCat-Flash: `ZeroExpertTopK(512, 12, num_zero_experts=256, bias=..., scaling_factor=6.0)`.
    Source: transformers `LongcatFlashTopkRouter` and `LongcatFlashExperts`.
    """

    num_experts: int = field(metadata=count())
    top_k: int = field(metadata=count())
    num_zero_experts: int = field(kw_only=True, metadata=count())
    bias: Float[Tensor, " E_and_Z"] = field(kw_only=True, metadata=per_expert("num_zero_experts"))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.top_k > self.num_experts + self.num_zero_experts:
            raise RouterError(
                f"ZeroExpertTopK.top_k is {self.top_k}, but num_experts={self.num_experts} and "
                f"num_zero_experts={self.num_zero_experts} are only {self.num_experts + self.num_zero_experts}"
            )

    @override
    def __call__(self, logits: Float[Tensor, "T E_and_Z"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = torch.softmax(float_logits(self, logits, self.num_experts + self.num_zero_experts), dim=-1)
        ids = top_ids(scores + self.bias, self.top_k)
        weights = scores.gather(-1, ids) * self.scaling_factor
        zero = ids >= self.num_experts
        return Routing(
            ids.masked_fill(zero, -1).to(torch.int32),
            weights.masked_fill(zero, 0.0),
            weights.masked_fill(~zero, 0.0).sum(dim=-1),
        )
