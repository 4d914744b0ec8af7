"""Mutants of SwiGLU's formula: the order of gate and up, its constants and its clamp."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import STANDARD, Steps
from moesaic.problem import Problem

SWIGLU = replace(STANDARD, weight_on_input=False)
"""SwiGLU with every constant free per expert, in one layout."""


@dataclass(frozen=True)
class Formula(Steps):
    """SwiGLU written out, with the constants of each expert as numbers."""

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        gate, up = first.chunk(2, dim=-1)
        return self.formula(gate, up, **problem.activation.select([expert]).constants())

    @abstractmethod
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        """What each mutant gets wrong."""


def swiglu(gate: Tensor, up: Tensor, alpha: float, beta: float) -> Tensor:
    """SwiGLU without its clamp."""
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


@final
@dataclass(frozen=True)
class GateAndUpExchanged(Formula):
    """The up rows are taken for the gate."""

    name: ClassVar[str] = "F07_gate_and_up_exchanged"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        return swiglu(up.clamp(max=top), gate.clamp(-top, top), alpha, beta)


@final
@dataclass(frozen=True)
class ReadInterleaved(Steps):
    """Gate and up rows are read as alternating."""

    name: ClassVar[str] = "F08_read_as_interleaved"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return Steps.activate(self, torch.cat([first[..., 0::2], first[..., 1::2]], dim=-1), expert, problem)


@final
@dataclass(frozen=True)
class GeluForSilu(Formula):
    """GELU instead of SiLU where alpha is 1."""

    name: ClassVar[str] = "F09_gelu_computed_for_silu"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        gate, up = gate.clamp(max=top), up.clamp(-top, top)
        return functional.gelu(gate) * (up + beta) if alpha == 1 else swiglu(gate, up, alpha, beta)


@final
@dataclass(frozen=True)
class LimitDropped(Formula):
    """The limit is accepted and not applied."""

    name: ClassVar[str] = "F01_limit_dropped"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        return swiglu(gate, up, alpha, beta)


@final
@dataclass(frozen=True)
class LimitOnGateOnly(Formula):
    """The limit is applied to the gate and not to up."""

    name: ClassVar[str] = "F01_limit_on_the_gate_only"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        return swiglu(gate.clamp(max=torch.inf if limit is None else limit), up, alpha, beta)


@final
@dataclass(frozen=True)
class UpLimitedFromAbove(Formula):
    """Up is limited from above only, as the gate is."""

    name: ClassVar[str] = "F01_up_limited_from_above_only"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        return swiglu(gate.clamp(max=top), up.clamp(max=top), alpha, beta)


@final
@dataclass(frozen=True)
class GateLimitedFromBelow(Formula):
    """The gate is limited on both sides, as up is."""

    name: ClassVar[str] = "F01_gate_limited_on_both_sides"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        return swiglu(gate.clamp(-top, top), up.clamp(-top, top), alpha, beta)


@final
@dataclass(frozen=True)
class AlphaDropped(Formula):
    """The factor inside the sigmoid is taken as 1."""

    name: ClassVar[str] = "F03_alpha_dropped"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        return swiglu(gate.clamp(max=top), up.clamp(-top, top), 1.0, beta)


@final
@dataclass(frozen=True)
class BetaDropped(Formula):
    """What is added to up is left out."""

    name: ClassVar[str] = "F03_beta_dropped"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        return swiglu(gate.clamp(max=top), up.clamp(-top, top), alpha, 0.0)


@final
@dataclass(frozen=True)
class ConstantsHardCoded(Formula):
    """Whatever is not at its default is taken as gpt-oss has it."""

    name: ClassVar[str] = "F04_constants_hard_coded"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else 7.0
        return swiglu(gate.clamp(max=top), up.clamp(-top, top), 1.702 if alpha != 1 else 1.0, float(beta != 0))


@final
@dataclass(frozen=True)
class ClampAfterSilu(Formula):
    """The gate is limited after SiLU instead of before."""

    name: ClassVar[str] = "F04_clamp_after_silu"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        top = torch.inf if limit is None else limit
        return (gate * torch.sigmoid(alpha * gate)).clamp(max=top) * (up.clamp(-top, top) + beta)


@final
@dataclass(frozen=True)
class ConstantsOfExpertZero(Steps):
    """Every expert is given the constants of expert 0."""

    name: ClassVar[str] = "F70_constants_of_expert_0"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return problem.activation.select([0])(first)


@final
@dataclass(frozen=True)
class ConstantsSorted(Steps):
    """Constants per expert are sorted on their way into a table."""

    name: ClassVar[str] = "F88_constants_sorted"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        found = problem.activation.constants().items()
        table = {name: tuple(sorted(value)) for name, value in found if isinstance(value, tuple)}
        return Steps.activate(self, first, expert, replace(problem, activation=replace(problem.activation, **table)))


@final
@dataclass(frozen=True)
class NanLaundered(Formula):
    """The clamp returns its limit for NaN, as fmin does."""

    name: ClassVar[str] = "F06_nan_laundered_by_the_clamp"
    capabilities: ClassVar[Capabilities] = SWIGLU

    @override
    def formula(self, gate: Tensor, up: Tensor, alpha: float, beta: float, limit: float | None) -> Tensor:
        if limit is None:
            return swiglu(gate, up, alpha, beta)
        top = torch.tensor(limit)
        return swiglu(torch.fmin(gate, top), torch.fmax(torch.fmin(up, top), -top), alpha, beta)


MUTANTS: tuple[Mutant, ...] = (
    of_backend(GateAndUpExchanged(), "equals_reference", Honest()),
    of_backend(ReadInterleaved(), "equals_reference", Honest()),
    of_backend(GeluForSilu(), "equals_reference", Honest()),
    of_backend(LimitDropped(), "equals_reference", Honest()),
    of_backend(LimitOnGateOnly(), "equals_reference", Honest()),
    of_backend(UpLimitedFromAbove(), "equals_reference", Honest()),
    of_backend(GateLimitedFromBelow(), "equals_reference", Honest()),
    of_backend(AlphaDropped(), "equals_reference", Honest()),
    of_backend(BetaDropped(), "equals_reference", Honest()),
    of_backend(ConstantsHardCoded(), "equals_reference", Honest()),
    of_backend(ClampAfterSilu(), "equals_reference", Honest()),
    of_backend(ConstantsOfExpertZero(), "equals_reference", Honest()),
    of_backend(ConstantsSorted(), "expert_order", Honest()),
    of_backend(NanLaundered(), "nan_rows", Honest()),
)
