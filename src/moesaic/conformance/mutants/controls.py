"""Honest and HonestWide: the steps with nothing overridden, which every check passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from moesaic.activations import GeGLU, ReLU2, SiTU, SwiGLU
from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.judge_backend import BackendJudge
from moesaic.conformance.mutants.steps import PLAIN, Steps
from moesaic.layouts import Standard

WIDE = replace(
    PLAIN,
    dtypes=(torch.bfloat16, torch.float16, torch.float32),
    layouts=(Standard(),),
    activations=tuple(Accepts.everything(kind) for kind in (SiTU, SwiGLU, GeGLU, ReLU2)),
    output_norm=True,
    differentiable=True,
)
"""More of everything that is not a layout."""


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


def of_backend(subject: Steps, check: str, control: Steps) -> Mutant:
    """A mutant whose name and meaning are those of its class."""
    meaning = (subject.__class__.__doc__ or subject.name).splitlines()[0]
    return Mutant(
        name=subject.name, meaning=meaning, check=check, subject=subject, control=control, judge=BackendJudge()
    )
