"""identify: which activation a function of a model is, found by evaluating it; never guessed from names.

>>> import torch
>>> def gate(rows):
...     gate, up = rows[..., ::2].clamp(max=7.0), rows[..., 1::2].clamp(-7.0, 7.0)
...     return gate * torch.sigmoid(1.702 * gate) * (up + 1)
>>> identify(gate, gated=True)
Identified(activation=SwiGLU(alpha=1.702, beta=1.0, limit=7.0), interleaved=True)
>>> identify(lambda rows: torch.sin(rows), gated=False) is None
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from moesaic.activations import Activation
from moesaic.integrations.transformers.fits import gated_candidates, plain_candidates
from moesaic.integrations.transformers.pointwise import Function, as_pointwise


@final
@dataclass(frozen=True)
class Identified:
    """An activation, and whether its gate and up columns alternate (g0, u0, g1, u1) or stand side by side."""

    activation: Activation
    interleaved: bool


def identify(function: Function, *, gated: bool, device: torch.device | None = None) -> Identified | None:
    """The activation that `function` computes, or None if it is none of moesaic's.

    `function` maps `[N, 2I]` to `[N, I]` if `gated`, else `[N, I]` to `[N, I]`. It is evaluated in float64 on
    `device`, in float32 where it does not take float64; an activation is accepted only if it agrees on a grid
    that reaches beyond all its limits.
    """
    f = as_pointwise(function, gated=gated, device=device or torch.device("cpu"))
    if f is None:
        return None
    for candidate in gated_candidates(f) if gated else plain_candidates(f):
        if f.agrees(candidate):
            return Identified(candidate, f.interleaved)
    return None
