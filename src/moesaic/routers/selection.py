"""The steps that rules share: the best ids with a fixed tie order, weights from scores, renormalisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moesaic.batches import Routing


def top_ids(scores: Tensor, top_k: int) -> Tensor:
    """Ids (int64) of the `top_k` highest scores along the last dimension, highest first, ties to the lower id.

    NaN counts as +inf. The ids are a part of a permutation, so they are distinct and in range whatever the scores:
    a stable sort keeps this promise, torch.topk promises no order of ties.
    """
    comparable = scores.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    return torch.argsort(comparable, dim=-1, descending=True, stable=True)[..., :top_k]


def renormalized(weights: Tensor, *, epsilon: float = 0.0, floor: float = 0.0) -> Tensor:
    """`weights / max(sum(weights) + epsilon, floor)` over the last dimension.

    Weights that are all zero stay zero, with an epsilon of 0 too, instead of 0 / 0 = NaN.
    """
    total = (weights.sum(dim=-1, keepdim=True) + epsilon).clamp(min=floor)
    return weights / total.masked_fill(total == 0, 1.0)


def weigh(
    scores: Tensor, ids: Tensor, *, renormalize: bool = False, epsilon: float = 0.0, scaling_factor: float = 1.0
) -> Routing:
    """Routing to `ids` with their `scores`, renormalised if asked, times the scaling factor."""
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = renormalized(weights, epsilon=epsilon)
    return Routing(ids.to(torch.int32), weights * scaling_factor)
