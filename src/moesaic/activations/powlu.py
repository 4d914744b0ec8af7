"""PowLU: a gate that grows with a falling power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At, Constant, constant
from moesaic.activations.clamping import at_most, within


@final
@dataclass(frozen=True)
class PowLU(Activation):
    """`a * u` with `a = g^(m / (sqrt(g) + 1)) * sigmoid(g)` for g > 0, else `silu(g)`; m is the exponent.

    With a limit L: `min(a, L) * clamp(u, -L, L)`. At g = inf the power is inf^0 = 1, as the formula says.
    """

    gated: ClassVar[bool] = True
    exponent: Constant = constant(2.5, positive=True)
    limit: Constant | None = constant(None, optional=True, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        positive = gate > 0
        base = torch.where(positive, gate, 1.0)  # keeps the root and its gradient finite where it is not used
        power = torch.pow(base, at(self.exponent) / (torch.sqrt(base) + 1))
        value = torch.where(positive, power, gate) * torch.sigmoid(gate)
        if self.limit is None:
            return value * up
        limit = at(self.limit)
        return at_most(value, limit) * within(up, limit)
