"""Hash routers: the token's id decides which experts, the logits decide how much (first layers of DeepSeek-V4).

Dimensions: V ids of the vocabulary.
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
from moesaic.routers.fields import check_fields, count, number
from moesaic.routers.selection import renormalized
from moesaic.routers.sqrtsoftplus import sqrt_softplus


@final
@dataclass(frozen=True, eq=False)
class HashedTopK(Router):
    """Experts `table[token_id]`, weighed by `s = sqrt(softplus(logit))` over (the sum of the K + epsilon); scaled.

    The table's ids come back as they are, also where they repeat. A token id outside `[0, V)` makes all K slots
    inactive (id -1, weight 0), a table entry outside `[0, E)` its own slot; neither counts in the sum.
    DeepSeek-V4: table `tid2eid`, epsilon 1e-20. Source: transformers `DeepseekV4HashRouter`.
    """

    num_experts: int = field(metadata=count())
    table: Int[Tensor, "V K"]
    epsilon: float = field(default=0.0, kw_only=True, metadata=number(zero=True))
    scaling_factor: float = field(default=1.0, kw_only=True, metadata=number(zero=False))

    def __post_init__(self) -> None:
        check_fields(self)
        if not _holds_ids(self.table, ndim=2) or 0 in self.table.shape:
            raise RouterError(f"HashedTopK.table is {_described(self.table)}, but it needs int32 or int64 ids (V, K)")

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        scores = sqrt_softplus(float_logits(self, logits, self.num_experts))
        if token_ids is None or not _holds_ids(token_ids, ndim=1) or token_ids.shape[0] != logits.shape[0]:
            raise RouterError(
                f"HashedTopK got token_ids {_described(token_ids)}, but it needs int32 or int64 ({logits.shape[0]},): "
                "the id of each token"
            )
        rows = token_ids.clamp(0, self.table.shape[0] - 1)
        ids = self.table[rows].long()
        active = (token_ids == rows).unsqueeze(-1) & (ids >= 0) & (ids < self.num_experts)
        weights = scores.gather(-1, ids.clamp(0, self.num_experts - 1)).masked_fill(~active, 0.0)
        weights = renormalized(weights, epsilon=self.epsilon) * self.scaling_factor
        return Routing(
            ids.masked_fill(~active, -1).to(torch.int32),
            weights.masked_fill(~active, 0.0),  # again: a NaN sum would reach the inactive slots
        )


def _holds_ids(value: object, *, ndim: int) -> bool:
    return isinstance(value, Tensor) and value.ndim == ndim and value.dtype in (torch.int32, torch.int64)


def _described(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
