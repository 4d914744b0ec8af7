"""Activations without a gate: one projection up, a function of each element, one projection down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations.base import Activation, At, Constant, constant
from moesaic.activations.gelu_forms import gelu
from moesaic.checks import option
from moesaic.errors import ActivationError


@final
@dataclass(frozen=True)
class ReLU2(Activation):
    """`relu(x)^2`; with a limit L `(L * tanh(relu(x) / L))^2`. Source: So et al. 2021, arXiv:2109.08668; Nemotron-3."""

    gated: ClassVar[bool] = False
    limit: Constant | None = constant(None, optional=True, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        root = torch.relu(rows)
        if self.limit is not None:
            limit = at(self.limit)
            root = limit * torch.tanh(root / limit)
        return root * root


@final
@dataclass(frozen=True)
class ReLU(Activation):
    """`relu(x)`."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return torch.relu(rows)


@final
@dataclass(frozen=True)
class GELU(Activation):
    """`gelu(x)`; approximate "none" is the error-function form, "tanh" the tanh form."""

    gated: ClassVar[bool] = False
    approximate: Literal["none", "tanh"] = "none"

    def __post_init__(self) -> None:
        checked = option("GELU", "approximate", self.approximate, ("none", "tanh"), ActivationError)
        object.__setattr__(self, "approximate", checked)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return gelu(rows, self.approximate)


@final
@dataclass(frozen=True)
class SiLU(Activation):
    """`x * sigmoid(x)`."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return rows * torch.sigmoid(rows)


@final
@dataclass(frozen=True)
class Identity(Activation):
    """`x`: two projections with nothing between them."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return rows.clone()
