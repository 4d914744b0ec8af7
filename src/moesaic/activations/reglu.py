"""ReGLU: `relu(gate) * up`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At


@final
@dataclass(frozen=True)
class ReGLU(Activation):
    """`relu(g) * u`. Source: Shazeer 2020, arXiv:2002.05202."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return torch.relu(gate) * up
