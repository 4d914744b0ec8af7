"""Clamps that keep NaN: a clamp in the manner of fmin would turn a NaN into the limit and hide it.

The branches are alike because torch types the two forms of clamp apart.
"""

from __future__ import annotations

import torch
from torch import Tensor


def at_most(values: Tensor, limit: float | Tensor) -> Tensor:
    """`min(values, limit)`; NaN stays NaN."""
    if isinstance(limit, Tensor):
        return torch.clamp(values, max=limit)
    return torch.clamp(values, max=limit)


def within(values: Tensor, limit: float | Tensor) -> Tensor:
    """`clamp(values, -limit, limit)`; NaN stays NaN."""
    if isinstance(limit, Tensor):
        return torch.clamp(values, min=-limit, max=limit)
    return torch.clamp(values, min=-limit, max=limit)


def limited(gate: Tensor, up: Tensor, limit: float | Tensor) -> tuple[Tensor, Tensor]:
    """`min(gate, limit), clamp(up, -limit, limit)`: the gate is limited from above only."""
    return at_most(gate, limit), within(up, limit)
