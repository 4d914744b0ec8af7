"""Mutants of one cell: a term that one layout, scheme or dtype loses, and every other keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import ACTIVATIONS as EVERY
from moesaic.activations import ReLU2, SwiGLU
from moesaic.backends import Reference
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.batches import Batch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.coded import Coded
from moesaic.conformance.mutants.controls import of_backend
from moesaic.conformance.mutants.judge_backend import BackendJudge
from moesaic.conformance.mutants.steps import PLAIN, Steps
from moesaic.layouts import BatchedExperts
from moesaic.problem import Problem
from moesaic.quant import INT4, SCHEMES, PerGroup, Plain, Quantized, Scheme
from moesaic.weights import ExpertWeights

ACTIVATIONS = replace(
    PLAIN,
    dtypes=(torch.bfloat16, torch.float16),
    activations=tuple(Accepts.everything(kind) for kind in EVERY),
    output_norm=True,
)

GROUPS = Scheme(INT4(PerGroup(128)), Plain())
WEIGHTS_ONLY = tuple(scheme for scheme in SCHEMES if isinstance(scheme.inputs, Plain))
CODES = replace(PLAIN, dtypes=(torch.bfloat16,), schemes=WEIGHTS_ONLY, activations=(Accepts(SwiGLU),))


@final
@dataclass(frozen=True)
class HonestActivations(Steps):
    """Nothing is wrong, with all activations and their constants, in every layout."""

    name: ClassVar[str] = "honest_activations"
    capabilities: ClassVar[Capabilities] = ACTIVATIONS

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return 5 * Steps.workspace(self, problem, num_rows) // 4


@final
@dataclass(frozen=True)
class LimitLostInSlabs(Steps):
    """Slabs ignore the limit of one activation."""

    name: ClassVar[str] = "F01_limit_of_one_activation_lost_in_slabs"
    capabilities: ClassVar[Capabilities] = ACTIVATIONS

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return 5 * Steps.workspace(self, problem, num_rows) // 4

    @override
    def activate(self, first: Tensor, expert: int, problem: Problem) -> Tensor:
        if problem.layout == BatchedExperts() and isinstance(problem.activation, ReLU2):
            problem = replace(problem, activation=ReLU2())
        return Steps.activate(self, first, expert, problem)


@dataclass(frozen=True)
class Cell(Coded):
    """`Reference` with one term left out in one cell."""

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return Reference().workspace(problem, num_rows) + 9 * problem.num_weights * problem.num_experts

    @override
    def read(self, stored: Quantized) -> Quantized:
        return stored

    @override
    def run(self, batch: Batch, prepared: ExpertWeights, problem: Problem) -> Tensor:
        return Reference().run(batch, self.weights(prepared, problem), problem)

    def weights(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        """The weights as the mutant takes them."""
        del problem
        return weights


@final
@dataclass(frozen=True)
class HonestCell(Cell):
    """Nothing is wrong, with weights in every format and in every layout."""

    name: ClassVar[str] = "honest_cell"
    capabilities: ClassVar[Capabilities] = CODES


@final
@dataclass(frozen=True)
class FirstGroupForAll(Cell):
    """Every group of 128 columns takes the scale of the first."""

    name: ClassVar[str] = "F51_scale_of_the_first_group_of_128_for_all"
    capabilities: ClassVar[Capabilities] = CODES

    @override
    def weights(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        if problem.scheme != GROUPS:
            return weights
        return replace(weights, gate_up=_first(weights.gate_up), down=_first(weights.down))


def _first(stored: Quantized) -> Quantized:
    scales = {n: s[..., :1].expand_as(s).contiguous() for n, s in stored.scales.items()}
    return Quantized(stored.format, stored.data, scales, stored.parts)


CROSSED = BackendJudge(crossed=True)

MUTANTS: tuple[Mutant, ...] = (
    of_backend(LimitLostInSlabs(), "equals_reference", HonestActivations(), CROSSED),
    of_backend(FirstGroupForAll(), "equals_reference", HonestCell(), CROSSED),
)
