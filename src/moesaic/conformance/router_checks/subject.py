"""RouterSubject: a router under test, with the facts about its rule that its author states."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor

from moesaic.batches import Routing
from moesaic.conformance.piece import close
from moesaic.errors import RouterError
from moesaic.routers import Router


@final
@dataclass(frozen=True)
class RoutingExample:
    """One published routing: these logits of one token give these experts, in this order, with these weights."""

    logits: tuple[float, ...]
    topk_ids: tuple[int, ...]
    topk_weights: tuple[float, ...]


@final
@dataclass(frozen=True)
class RouterSubject:
    """`num_logits`: per token; by default the `num_experts` that the router states, else 8.

    `scaling`: the factor on all weights. `renormalised`: whether the weights of a token sum to it; None if that is no
    question. `bias`: the name of the field with the correction bias, which selects and never weighs. `groups`: number
    of groups, and how many of them a token may use. `vocabulary`: ids that a hash router knows; None for a router
    that reads none. `by_score`: the experts with the highest logits (plus bias, inside the groups) are chosen.
    `group_score`: what the best groups have most of, the sum of two best experts ("top2") or the best one ("max").
    """

    router: Router
    num_logits: int | None = None
    scaling: float = 1.0
    renormalised: bool | None = None
    bias: str | None = None
    groups: tuple[int, int] | None = None
    vocabulary: int | None = None
    by_score: bool = True
    examples: tuple[RoutingExample, ...] = ()
    group_score: str | None = None

    def __post_init__(self) -> None:
        if self.group_score not in (None, "top2", "max"):
            raise RouterError(f'RouterSubject.group_score is {self.group_score!r}, but it needs "top2", "max" or None')

    @property
    def columns(self) -> int:
        """Logits per token."""
        return self.num_logits or self.router.stated("num_experts") or 8

    @property
    def num_experts(self) -> int:
        """Experts that ids may name; a router with zero experts has fewer than logits."""
        return self.router.stated("num_experts") or self.columns

    def route(self, logits: Tensor, router: Router | None = None) -> Routing:
        """What the router, or another one of its kind, answers."""
        chosen = self.router if router is None else router
        return chosen(logits) if self.vocabulary is None else chosen(logits, self.token_ids(len(logits)))

    def token_ids(self, num_tokens: int) -> Tensor:
        """An id for each token, for routers that read them."""
        return torch.arange(num_tokens) % (self.vocabulary or 1)

    def spread_logits(self, num_tokens: int = 13, seed: int = 0) -> Tensor:
        """Each row is a permutation of spaced numbers around 0: no two are near, and no two pairs have one sum."""
        generator = torch.Generator().manual_seed(seed)
        places = torch.rand(num_tokens, self.columns, generator=generator).argsort(-1)
        even = torch.linspace(-3, 3, self.columns)
        return (even + 0.07 * even * even)[places]

    @property
    def is_plain(self) -> bool:
        """Whether it holds numbers only, so that its repr can be read back."""
        values = (getattr(self.router, f.name) for f in fields(self.router))
        return all(isinstance(value, int | float | str | tuple | None) for value in values)

    @property
    def has_bias(self) -> bool:
        """Whether experts differ by something else than their logits."""
        return self.bias is not None and bool((getattr(self.router, self.bias) != 0).any())

    def with_field(self, name: str, value: Any) -> Router:
        """The router with one field replaced."""
        return replace(self.router, **{name: value})


def same_routing(got: Routing, wanted: Routing, what: str, *, error: float = 2e-6) -> None:
    """Raise Nonconformance unless ids agree, and weights to `error` of their size."""
    close(got.topk_ids, wanted.topk_ids, torch.zeros(1), f"topk_ids of {what}")
    allowed = error * (wanted.topk_weights.double().abs() + 1e-6)
    close(got.topk_weights, wanted.topk_weights, allowed, f"topk_weights of {what}")
    if wanted.identity_weights is not None and got.identity_weights is not None:
        allowed = error * (1 + wanted.identity_weights.double().abs())
        close(got.identity_weights, wanted.identity_weights, allowed, f"identity_weights of {what}")
