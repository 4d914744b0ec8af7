"""Replica counts: how many slots each expert gets, so that the most loaded replica carries as little as possible."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

IDLE = 1e-9
"""The share of a layer's load that every expert has on top, so that equal loads, zero too, mean equal replicas."""


def shares(load: Float[Tensor, "P E"]) -> Float[Tensor, "P E"]:
    """Each expert's share of its row of `load`, which is finite and not negative; equal shares where all is zero."""
    most = load.amax(1, keepdim=True)
    scaled = load / most.where(most > 0, 1.0)  # a sum of loads may overflow
    return scaled / scaled.sum(1, keepdim=True).clamp(min=1.0) + IDLE


def replica_counts(share: Float[Tensor, "P E"], num_slots: int, most: int) -> Int[Tensor, "P E"]:
    """Slots for each expert, at least one and at most `most`, `num_slots` in every row; E <= num_slots <= E * most.

    Each slot beyond the first E goes to the expert whose replicas carry most now, the first of equals. Of all counts
    these make the largest share of a replica smallest.
    """
    counts = torch.ones_like(share, dtype=torch.int64)
    rows = torch.arange(len(share), device=share.device)
    carried = share.clone()
    for _ in range(num_slots - share.shape[1]):
        expert = carried.argmax(1)
        counts[rows, expert] += 1
        now = counts[rows, expert]
        carried[rows, expert] = torch.where(now < most, share[rows, expert] / now, -1.0)
    return counts
