"""Mutants of declarations: more is declared than computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import GeGLU, ReLU2, SiTU, SwiGLU
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.batches import Batch, TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import WIDE, Honest, HonestWide, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, PLAIN, STANDARD, Steps
from moesaic.layouts import BatchedExperts
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

SITU = replace(WIDE, dtypes=(torch.float32,), activations=(Accepts(SiTU),), output_norm=False, differentiable=False)
"""SiTU at its defaults."""


@final
@dataclass(frozen=True)
class LayoutOverDeclared(Steps):
    """A layout is declared, and raises when it comes."""

    name: ClassVar[str] = "F70_layout_over_declared"
    capabilities: ClassVar[Capabilities] = PLAIN

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        if batch.layout == BatchedExperts():
            raise NotImplementedError("slabs")
        return Steps.run(self, batch, prepared, problem)


@final
@dataclass(frozen=True)
class PerExpertOverDeclared(Steps):
    """A constant per expert is declared, and raises when it comes."""

    name: ClassVar[str] = "F70_constant_per_expert_over_declared"
    capabilities: ClassVar[Capabilities] = STANDARD

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        if problem.activation.per_expert():
            raise NotImplementedError("one constant for all experts")
        return problem.activation(first)


@final
@dataclass(frozen=True)
class BiasOverDeclared(Steps):
    """Bias is declared, and raises when it comes."""

    name: ClassVar[str] = "F68_bias_over_declared"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def gate_up_bias(self, first: Tensor, expert: int, weights: ExpertWeights) -> Tensor:
        if weights.gate_up_bias is not None:
            raise NotImplementedError("bias")
        return first


@final
@dataclass(frozen=True)
class ActivationOverDeclared(Steps):
    """Any activation is declared; one that is not known is computed as SwiGLU."""

    name: ClassVar[str] = "F09_unknown_activation_is_swiglu"
    capabilities: ClassVar[Capabilities] = replace(ONE_ACTIVATION, any_activation=True)

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return SwiGLU()(first) if problem.activation.gated else first.relu()


@final
@dataclass(frozen=True)
class TopKOverDeclared(Steps):
    """Eight slots are declared, and four computed."""

    name: ClassVar[str] = "F42_top_k_over_declared"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        ids = batch.routing.topk_ids
        return torch.where(torch.arange(ids.shape[1]) < 4, ids, -1)


@final
@dataclass(frozen=True)
class ExpertsOverDeclared(Steps):
    """64 experts are declared, and the first 32 computed."""

    name: ClassVar[str] = "F42_number_of_experts_over_declared"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def order(self, problem: Problem) -> range:
        return range(min(problem.num_experts, 32))


@final
@dataclass(frozen=True)
class RowBytesUnderstated(Steps):
    """Rows of any length are declared; the projections need 16 bytes."""

    name: ClassVar[str] = "F59_row_bytes_understated"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        if rows.shape[1] * rows.element_size() % 16:
            raise RuntimeError("strides should be multiples of 16 bytes")
        return Steps.product(self, rows, matrix)


@final
@dataclass(frozen=True)
class ChoiceOverDeclared(Steps):
    """Both forms of GELU are declared, and the approximate one always computed."""

    name: ClassVar[str] = "F09_gelu_always_approximate"
    capabilities: ClassVar[Capabilities] = replace(
        WIDE, dtypes=(torch.float32,), activations=(Accepts.everything(GeGLU),), differentiable=False
    )

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        gate, up = first.chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate, approximate="tanh") * up


@final
@dataclass(frozen=True)
class Relu2AsRelu(Steps):
    """ReLU2 is computed as ReLU."""

    name: ClassVar[str] = "F09_relu_for_relu2"
    capabilities: ClassVar[Capabilities] = replace(
        WIDE, dtypes=(torch.float32,), activations=(Accepts.everything(ReLU2),), differentiable=False
    )

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return first.relu()


@final
@dataclass(frozen=True)
class SituAsSwiglu(Steps):
    """SiTU is computed as SwiGLU."""

    name: ClassVar[str] = "F05_situ_as_swiglu"
    capabilities: ClassVar[Capabilities] = SITU

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        return SwiGLU()(first)


@final
@dataclass(frozen=True)
class SituCappedGate(Steps):
    """The sigmoid of SiTU sees the capped gate."""

    name: ClassVar[str] = "F05_situ_with_the_capped_gate"
    capabilities: ClassVar[Capabilities] = SITU

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        gate, up = first.chunk(2, dim=-1)
        capped = 4 * torch.tanh(gate / 4)
        return capped * torch.sigmoid(capped) * 25 * torch.tanh(up / 25)


@final
@dataclass(frozen=True)
class SituFastTanh(Steps):
    """SiTU is computed with a tanh that is off by 2**-11."""

    name: ClassVar[str] = "F05_approximate_tanh"
    capabilities: ClassVar[Capabilities] = SITU

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        gate, up = first.chunk(2, dim=-1)
        near = (torch.tanh(up / 25) * 2.0**11).round() / 2.0**11
        return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * near


MUTANTS: tuple[Mutant, ...] = (
    of_backend(LayoutOverDeclared(), "equals_reference", Honest()),
    of_backend(PerExpertOverDeclared(), "equals_reference", Honest()),
    of_backend(BiasOverDeclared(), "equals_reference", Honest()),
    of_backend(ActivationOverDeclared(), "equals_reference", Honest()),
    of_backend(TopKOverDeclared(), "equals_reference", Honest()),
    of_backend(ExpertsOverDeclared(), "equals_reference", Honest()),
    of_backend(RowBytesUnderstated(), "equals_reference", Honest()),
    of_backend(ChoiceOverDeclared(), "equals_reference", HonestWide()),
    of_backend(Relu2AsRelu(), "equals_reference", HonestWide()),
    of_backend(SituAsSwiglu(), "equals_reference", HonestWide()),
    of_backend(SituCappedGate(), "equals_reference", HonestWide()),
    of_backend(SituFastTanh(), "equals_reference", HonestWide()),
)
