"""The honest ones, which every check passes: the steps with nothing overridden, or with rounding as kernels have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import GeGLU, ReLU2, SiTU, SwiGLU
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.judge_backend import BackendJudge
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, PLAIN, Steps
from moesaic.layouts import Standard
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights

WIDE = replace(
    PLAIN,
    dtypes=(torch.bfloat16, torch.float16, torch.float32),
    layouts=(Standard(),),
    activations=tuple(Accepts.everything(kind) for kind in (SiTU, SwiGLU, GeGLU, ReLU2)),
    output_norm=True,
    differentiable=True,
)
"""More of everything that is not a layout."""

ROUNDED = replace(
    PLAIN,
    dtypes=(torch.bfloat16, torch.float32),
    activations=(Accepts(SwiGLU), Accepts(ReLU2)),
    weight_on_input=False,
)
"""What rounds as kernels do, in every layout."""

ANYWHERE = replace(ONE_ACTIVATION, layouts=PLAIN.layouts, bias=False, weight_on_input=False)
"""Little but every layout."""


@final
@dataclass(frozen=True)
class Honest(Steps):
    """Nothing is wrong, in every layout."""

    name: ClassVar[str] = "honest"
    capabilities: ClassVar[Capabilities] = PLAIN


@final
@dataclass(frozen=True)
class HonestWide(Steps):
    """Nothing is wrong, with more dtypes and activations, the output norm and gradients."""

    name: ClassVar[str] = "honest_wide"
    capabilities: ClassVar[Capabilities] = WIDE


@final
@dataclass(frozen=True)
class HonestRounded(Steps):
    """Nothing is wrong, and each tensor that a kernel stores is rounded to the dtype of the rows, in every layout."""

    name: ClassVar[str] = "honest_rounded"
    capabilities: ClassVar[Capabilities] = ROUNDED

    @override
    def expert(self, rows: Tensor, expert: int, weights: ExpertWeights, problem: Problem) -> Tensor:
        dtype = problem.dtype
        first = self.gate_up_bias(self.gate_up(rows, expert, weights), expert, weights).to(dtype).float()
        inner = self.activate(first, expert, problem).to(dtype).float()
        return self.down_bias(self.down(inner, expert, weights), expert, weights).to(dtype).float()


@final
@dataclass(frozen=True)
class HonestAnywhere(Steps):
    """Nothing is wrong, at large addresses either."""

    name: ClassVar[str] = "honest_anywhere"
    capabilities: ClassVar[Capabilities] = ANYWHERE


def of_backend(subject: Steps, check: str, control: Steps, judge: BackendJudge | None = None) -> Mutant:
    """A mutant whose name and meaning are those of its class."""
    meaning = (subject.__class__.__doc__ or subject.name).splitlines()[0]
    chosen = BackendJudge() if judge is None else judge
    return Mutant(name=subject.name, meaning=meaning, check=check, subject=subject, control=control, judge=chosen)
