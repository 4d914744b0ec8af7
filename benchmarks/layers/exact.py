"""The layer in float32, with what each contender's activation is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moesaic import ExpertWeights, Routing, StandardBatch

Activation = Callable[[Tensor], Tensor]
"""`[rows, 2 I]` to `[rows, I]`."""


def swiglu(rows: Tensor) -> Tensor:
    """Gate above up."""
    gate, up = rows.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def clamped_swiglu(rows: Tensor) -> Tensor:
    """GPT-OSS': gate and up in turns, both clamped, and one more than up."""
    gate, up = rows[:, 0::2].clamp(max=7.0), rows[:, 1::2].clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def head(batch: StandardBatch, tokens: int) -> StandardBatch:
    """The first tokens."""
    routing = batch.routing
    return StandardBatch(
        batch.hidden_states[:tokens], Routing(routing.topk_ids[:tokens], routing.topk_weights[:tokens])
    )


def exact(batch: StandardBatch, weights: ExpertWeights, activation: Activation) -> Tensor:
    """float32 `[T, H]`, one expert after the other."""
    rows, routing = batch.hidden_states, batch.routing
    out = torch.zeros(rows.shape, device=rows.device)
    for expert in routing.topk_ids.unique().tolist():
        token, slot = (routing.topk_ids == expert).nonzero(as_tuple=True)
        gate_up, down = (part.expert(expert).dequantize(torch.float32) for part in (weights.gate_up, weights.down))
        products = activation(rows[token].float() @ gate_up.T) @ down.T
        out.index_add_(0, token, products * routing.topk_weights[token, slot, None])
    return out


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over that of what is wanted, in the rows that are wanted."""
    return ((got[: len(wanted)].float() - wanted).norm() / wanted.norm()).item()
