"""SiTU: SwiGLU with both factors softly capped by tanh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At, Constant, constant
from moesaic.activations.clamping import limited


@final
@dataclass(frozen=True)
class SiTU(Activation):
    """`gs * tanh(g / gs) * sigmoid(g) * ls * tanh(u / ls)`: the sigmoid sees the uncapped gate.

    `linear_scale=None` leaves u as it is. A limit L is applied first, as SwiGLU's. Needs float32 and an accurate
    tanh: an approximation with an error of 2^-11 is off by 1e-2 after the factor 25.
    Source: Kimi-K3 and Inkling2 (transformers `Inkling2SoftcappedSwiGLU`).
    """

    gated: ClassVar[bool] = True
    gate_scale: Constant = constant(4.0, positive=True)
    linear_scale: Constant | None = constant(25.0, optional=True, positive=True)
    limit: Constant | None = constant(None, optional=True, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        if self.limit is not None:
            gate, up = limited(gate, up, at(self.limit))
        gate_scale = at(self.gate_scale)
        if self.linear_scale is not None:
            linear_scale = at(self.linear_scale)
            up = linear_scale * torch.tanh(up / linear_scale)
        return gate_scale * torch.tanh(gate / gate_scale) * torch.sigmoid(gate) * up
