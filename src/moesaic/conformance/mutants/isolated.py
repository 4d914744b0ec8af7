"""Mutants that hang or die: they are judged in a process of their own."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest
from moesaic.conformance.mutants.judge_backend import BackendJudge
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.problem import Problem

ALONE = BackendJudge(limit=3.0)
"""A second and a half is the most that a call of these takes on a busy machine."""


@final
@dataclass(frozen=True)
class Hangs(Steps):
    """A call without a token never returns."""

    name: ClassVar[str] = "F79_no_token_hangs"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        if len(batch.rows) == 0:
            threading.Event().wait(3600.0)
        return batch.routing.topk_ids


@final
@dataclass(frozen=True)
class Dies(Steps):
    """A call with one token accesses memory that is not there."""

    name: ClassVar[str] = "F14_one_token_accesses_illegal_memory"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        if len(batch.rows) == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return batch.routing.topk_ids


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(
        name=subject.name,
        meaning=(subject.__class__.__doc__ or subject.name).splitlines()[0],
        check=check,
        subject=subject,
        control=Honest(),
        judge=ALONE,
    )
    for subject, check in ((Hangs(), "zero_tokens"), (Dies(), "one_token"))
)
