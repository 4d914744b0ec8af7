"""SwiGLU and its variants: `silu(gate) * up` with alpha, beta and a clamp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At, Constant, constant
from moesaic.activations.clamping import at_most, limited, within


@final
@dataclass(frozen=True)
class SwiGLU(Activation):
    """`g * sigmoid(alpha * g) * (u + beta)`; with a limit L first `g = min(g, L)`, `u = clamp(u, -L, L)`.

    gpt-oss: `SwiGLU(alpha=1.702, beta=1.0, limit=7.0)`; DeepSeek-V4: `SwiGLU(limit=10.0)`.
    Source: Shazeer 2020, arXiv:2002.05202; gpt-oss `modeling_gpt_oss.py`.
    """

    gated: ClassVar[bool] = True
    alpha: Constant = constant(1.0)
    beta: Constant = constant(0.0)
    limit: Constant | None = constant(None, optional=True, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        if self.limit is not None:
            gate, up = limited(gate, up, at(self.limit))
        return gate * torch.sigmoid(at(self.alpha) * gate) * (up + at(self.beta))


@final
@dataclass(frozen=True)
class SwiGLUStep(Activation):
    """`min(silu(g), L) * clamp(u, -L, L)`: the clamp comes after silu, unlike SwiGLU's (Step-3.x, two layers)."""

    gated: ClassVar[bool] = True
    limit: Constant = constant(7.0, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        limit = at(self.limit)
        return at_most(gate * torch.sigmoid(gate), limit) * within(up, limit)
