"""Wrong activations whose value is another one: each is a formula of the package with one step exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.activations import GELU, Activation, GeGLU, PowLU, ReLU2, SiLU, SiTU, SwiGLU, SwiGLUStep
from moesaic.activations.base import At, Constant, constant
from moesaic.conformance.activation_checks import GOLDEN, ActivationSubject
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.judge_pieces import ActivationJudge


@final
@dataclass(frozen=True)
class GateAndUpExchanged(Activation):
    """`silu(up) * gate`."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        up, gate = rows.chunk(2, dim=-1)
        return functional.silu(gate) * up


@final
@dataclass(frozen=True)
class UpClampedFromAboveOnly(Activation):
    """SwiGLU whose clamp of up forgets the lower end."""

    gated: ClassVar[bool] = True
    limit: Constant = constant(10.0, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = (part - torch.relu(part - at(self.limit)) for part in rows.chunk(2, dim=-1))
        return functional.silu(gate) * up


@final
@dataclass(frozen=True)
class ClampBeforeSilu(Activation):
    """SwiGLUStep that clamps the gate before silu, as SwiGLU does."""

    gated: ClassVar[bool] = True
    limit: Constant = constant(1.0, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return SwiGLU(limit=self.limit).formula(rows, at)


@final
@dataclass(frozen=True)
class SigmoidOfTheCappedGate(Activation):
    """SiTU whose sigmoid sees the gate after tanh."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        capped = 4 * torch.tanh(gate / 4)
        return capped * torch.sigmoid(capped) * 25 * torch.tanh(up / 25)


@final
@dataclass(frozen=True)
class RationalTanh(Activation):
    """SiTU with the tanh of a kernel, a fraction that is off by 2^-8 at most, whatever the dtype."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        return 4 * _tanh(gate / 4) * torch.sigmoid(gate) * 25 * _tanh(up / 25)


@final
@dataclass(frozen=True)
class GeluForSilu(Activation):
    """SiLU computed as GELU."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return GELU().formula(rows, at)


@final
@dataclass(frozen=True)
class TanhFormOfGelu(Activation):
    """GeGLU with the tanh form where the error function is meant."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return GeGLU("tanh").formula(rows, at)


@final
@dataclass(frozen=True)
class SiluForPowlu(Activation):
    """An unknown gated kind taken for SwiGLU."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return SwiGLU().formula(rows, at)


@final
@dataclass(frozen=True)
class WithoutTheSquare(Activation):
    """ReLU2 computed as ReLU."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return torch.relu(rows)


def _tanh(values: Tensor) -> Tensor:
    """`x (27 + x^2) / (27 + 9 x^2)` inside of [-3, 3], and 1 beyond; NaN stays NaN."""
    inner = values.clamp(-3, 3)
    return inner * (27 + inner * inner) / (27 + 9 * inner * inner)


def of_activation(name: str, subject: Activation, check: str, control: Activation, *, published: bool = True) -> Mutant:
    """A mutant of `control`, judged by its examples, or as an author's own of which nothing is published."""
    meaning = (subject.__class__.__doc__ or name).splitlines()[0]
    examples = GOLDEN.get(control, ()) if published else ()
    return Mutant(
        name=name,
        meaning=meaning,
        check=check,
        subject=ActivationSubject(subject, examples),
        control=ActivationSubject(control, examples),
        judge=ActivationJudge(),
    )


WRONG_FORMULAS: tuple[Mutant, ...] = (
    of_activation("F01_up_clamped_from_above_only", UpClampedFromAboveOnly(), "examples", SwiGLU(limit=10.0)),
    of_activation("F04_clamp_before_silu", ClampBeforeSilu(), "examples", SwiGLUStep(limit=1.0)),
    of_activation("F05_sigmoid_after_the_cap", SigmoidOfTheCappedGate(), "examples", SiTU()),
    of_activation("F05_rational_tanh", RationalTanh(), "examples", SiTU()),
    of_activation("F07_gate_and_up_exchanged_in_the_activation", GateAndUpExchanged(), "examples", SwiGLU()),
    of_activation("F09_silu_computed_as_gelu", GeluForSilu(), "examples", SiLU()),
    of_activation("F09_tanh_form_of_gelu", TanhFormOfGelu(), "examples", GeGLU()),
    of_activation("F09_unknown_kind_is_swiglu", SiluForPowlu(), "examples", PowLU()),
    of_activation("F09_relu_without_the_square", WithoutTheSquare(), "examples", ReLU2()),
)
