"""GeGLU: `gelu(gate) * up`, with the exact or the tanh form of GELU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At
from moesaic.activations.gelu_forms import gelu
from moesaic.checks import option
from moesaic.errors import ActivationError


@final
@dataclass(frozen=True)
class GeGLU(Activation):
    """`gelu(g) * u`; approximate "none" is the error-function form, "tanh" the tanh form (Gemma-4).

    Source: Shazeer 2020, arXiv:2002.05202.
    """

    gated: ClassVar[bool] = True
    approximate: Literal["none", "tanh"] = "none"

    def __post_init__(self) -> None:
        checked = option("GeGLU", "approximate", self.approximate, ("none", "tanh"), ActivationError)
        object.__setattr__(self, "approximate", checked)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return gelu(gate, self.approximate) * up
