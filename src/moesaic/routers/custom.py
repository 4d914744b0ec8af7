"""A user's own rule as a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.errors import RouterError
from moesaic.routers.base import Router, float_logits

Rule: TypeAlias = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""From logits [T, E] (float32 or float64) and token_ids [T] or None to topk_ids and topk_weights, both [T, K]."""


@final
@dataclass(frozen=True)
class CustomRouter(Router):
    """`topk_ids, topk_weights = rule(logits, token_ids)`, checked as every `Routing` is.

    What Router promises about ties, NaN and synchronisation is the rule's own business here. Equal rules make equal
    routers; the repr does not evaluate.
    """

    rule: Rule

    def __post_init__(self) -> None:
        if not callable(self.rule):
            raise RouterError(f"CustomRouter.rule is {self.rule!r}, but it needs a callable of (logits, token_ids)")

    @override
    def __call__(self, logits: Float[Tensor, "T E"], token_ids: Int[Tensor, " T"] | None = None) -> Routing:
        returned: object = self.rule(float_logits(self, logits), token_ids)
        match returned:
            case (Tensor() as topk_ids, Tensor() as topk_weights) if len(topk_ids) == len(logits):
                return Routing(topk_ids, topk_weights)
            case _:
                raise RouterError(
                    f"CustomRouter's rule returned {_described(returned)}, but it needs two tensors, "
                    f"topk_ids and topk_weights, of shape ({len(logits)}, K)"
                )


def _described(returned: object) -> str:
    """Types, and the shapes of tensors, instead of every value."""
    match returned:
        case Tensor():
            return f"a tensor of shape {tuple(returned.shape)}"
        case tuple() | list():
            return f"({', '.join(_described(part) for part in returned)})"
        case _:
            return repr(returned)
