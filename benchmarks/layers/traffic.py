"""What tokens ask for: experts that are equally popular, or by Zipf's law, or one of them hot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from dispatching.shapes import Shape
from dispatching.traffic import drawn

from moesaic import Routing, StandardBatch


@final
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """`skew`: exponent of Zipf's law, 0 for even popularity. `hot`: the share of tokens that have one expert in common.

    Which experts are popular is drawn anew for every batch, so that calls in turn do not find their weights in L2.
    With a hot expert the other tokens never ask for it, so its share is exact, rounded up to whole tokens.
    """

    skew: float = 0.0
    hot: float = 0.0

    def __post_init__(self) -> None:
        if self.skew and self.hot:
            raise ValueError(f"a skew of {self.skew} and a hot share of {self.hot}: give one of them")
        if self.skew < 0 or not 0 <= self.hot <= 1:
            raise ValueError(f"a skew of {self.skew} and a hot share of {self.hot}: 0 or more, and from 0 to 1")

    def ids(self, tokens: int, shape: Shape, generator: torch.Generator) -> torch.Tensor:
        """int32 `[T, K]`, different experts in a row, on the generator's device."""
        options = {"generator": generator, "device": generator.device}
        order = torch.randperm(shape.num_experts, **options)
        if not self.hot:
            return order[drawn(tokens, shape.num_experts, shape.top_k, self.skew, generator).long()].int()
        hot, others = order[0], order[1:]
        ids = others[drawn(tokens, len(others), shape.top_k, 0.0, generator).long()]
        ids[torch.randperm(tokens, **options)[: math.ceil(self.hot * tokens)], 0] = hot
        return ids.int()

    def batches(self, tokens: int, shape: Shape, count: int, device: str, dtype: torch.dtype) -> list[StandardBatch]:
        """So many, other ones for another number of tokens, and the same in every run."""
        found = []
        for number in range(count):
            generator = torch.Generator(device).manual_seed(100 * tokens + number)
            ids = self.ids(tokens, shape, generator)
            weights = torch.randn(tokens, shape.top_k, device=device, generator=generator).softmax(-1)
            rows = torch.randn(tokens, shape.hidden_size, device=device, generator=generator).to(dtype)
            found.append(StandardBatch(rows, Routing(ids, weights)))
        return found


def touched(batches: list[StandardBatch]) -> float:
    """Experts that a batch asks for, on average."""
    return sum(batch.routing.topk_ids.unique().numel() for batch in batches) / len(batches)


def busiest(batches: list[StandardBatch]) -> float:
    """Rows of a batch's busiest expert, on average."""
    return sum(batch.routing.topk_ids.flatten().bincount().max().item() for batch in batches) / len(batches)
