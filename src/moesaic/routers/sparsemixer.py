"""SparseMixer's rule at inference: two experts, each weighed against its near rivals only (Phi-3.5-MoE)."""

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
from moesaic.routers.fields import check_fields, count, number
from moesaic.routers.selection import top_ids


@final
@dataclass(frozen=True)
class SparseMixer(Router):
    """The two highest logits; each weighed by its probability in a softmax over the experts near it.

    For a chosen logit m, logit x takes part unless `(m - x) / max(|x|, m) > 2 * jitter`, and for the second expert
    the first takes no part. The two weights do not sum to 1; both are 1 where no rival is near.
    Phi-3.5-MoE: `SparseMixer(16)`. Source: Liu et al. 2024, arXiv:2409.12136; transformers `phimoe`, `sparsemixer`
    outside training.
    """

    num_experts: int = field(metadata=count())
    jitter: float = field(default=0.01, kw_only=True, metadata=number(zero=True))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_experts < 2:
            raise RouterError(f"SparseMixer.num_experts is {self.num_experts}, but it selects 2 experts")

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        logits = float_logits(self, logits, self.num_experts)
        ids = top_ids(logits, 2)
        first, second = ids[:, :1], ids[:, 1:]
        weights = torch.cat(
            (
                _share(logits, first, self.jitter),
                _share(logits.scatter(-1, first, -math.inf), second, self.jitter),
            ),
            dim=-1,
        )
        return Routing(ids.to(torch.int32), weights)


def _share(logits: Tensor, chosen: Tensor, jitter: float) -> Tensor:
    """The probability of `chosen` [T, 1] in softmax over the logits near the chosen one; -inf takes no part."""
    highest = logits.gather(-1, chosen)
    far = (highest - logits) / torch.maximum(logits.abs(), highest) > 2 * jitter
    return torch.softmax(logits.masked_fill(far, -math.inf), dim=-1).gather(-1, chosen)
