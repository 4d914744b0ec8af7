"""Execution: where a check runs. In this process, or (`worker.py`) in one that may hang or die."""

from __future__ import annotations

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Reason
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.checks.declines import Declines
from moesaic.conformance.oracle import Oracle
from moesaic.conformance.outcome import DECLINED, Outcome, Status
from moesaic.conformance.printable import message
from moesaic.conformance.subject import Subject
from moesaic.conformance.torch_state import kept
from moesaic.errors import Nonconformance
from moesaic.machine import Machine

OWN_FRAMES = 3
"""How many of the innermost frames of an exception are reported."""


@final
@dataclass(frozen=True)
class Job:
    """One check of one backend on one case."""

    backend: Backend[Any]
    machine: Machine
    check: Check
    case: Case


class Execution(ABC):
    """Runs jobs, one at a time, and reports whatever happens as an outcome."""

    @abstractmethod
    def run(self, job: Job) -> Outcome:
        """What became of `job`. Never raises for a fault of the backend."""


@final
class InProcess(Execution):
    """Runs jobs here: fast, with the oracle's answers shared by all; a call that hangs or crashes takes it along."""

    def __init__(self, oracle: Oracle | None = None) -> None:
        self.oracle = Oracle() if oracle is None else oracle

    @override
    def run(self, job: Job) -> Outcome:
        subject = Subject(job.backend, job.machine, self.oracle)
        try:
            if (reason := declined(job)) is not None:
                return Outcome(job.check.name, job.case, Status.SKIPPED, reason, DECLINED)
            with kept(subject.device):  # a setting that a backend leaves behind must not reach the next job
                job.check.run(subject, job.case)
        except Nonconformance as fault:
            return Outcome(job.check.name, job.case, Status.FAILED, message(fault), kind_of(fault))
        except KeyboardInterrupt:
            raise
        # Whatever a backend raises in a job is what the kit is there to report (elsewhere: `strangers.py`).
        except BaseException as fault:  # noqa: BLE001
            return Outcome(job.check.name, job.case, Status.ERRORED, described(fault), raised_at(fault))
        return Outcome(job.check.name, job.case, Status.PASSED)


def declined(job: Job) -> str | None:
    """What stands against the case of `job` beyond the declaration, such as memory; the check "declines" judges it."""
    if job.check.name == Declines.name:
        return None
    reasons = job.backend.reasons_against(job.case.problem, job.machine)
    return in_words(reasons) if reasons else None


def in_words(reasons: Sequence[Reason]) -> str:
    """Why a case was not tried that the backend declines."""
    return f"the backend declines it: {'; '.join(map(str, reasons))}"


def described(fault: BaseException) -> str:
    """An exception in one line: its class, its message, and the innermost lines that raised it."""
    where = " < ".join(_frames(fault)[:OWN_FRAMES])
    return f"{fault.__class__.__name__}: {' '.join(message(fault).split())[:1000]} ({where})"


def raised_at(fault: BaseException) -> str:
    """The class of an exception and the innermost line that raised it: what equal errors have in common."""
    return f"{fault.__class__.__name__} {' '.join(_frames(fault)[:1])}"


def kind_of(fault: Nonconformance) -> str:
    """What was looked at and what was wanted, without reprs and figures, which differ from case to case."""
    wanted = "" if re.search(r"\d", fault.wanted) else fault.wanted
    return f"{re.sub(r'[0-9]+', '#', fault.what.split('(')[0])}: {wanted}"


def _frames(fault: BaseException) -> list[str]:
    """The lines that raised `fault`, or what it was raised from on purpose, the innermost first."""
    frames = traceback.extract_tb((fault.__cause__ or fault).__traceback__)
    return [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(frames)]
