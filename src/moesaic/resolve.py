"""resolve: which backend runs a problem on a machine, and why not each of the others. Pure; a decision is a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Reason
from moesaic.errors import BackendError, MachineError, NoBackendError
from moesaic.machine import Machine
from moesaic.problem import Problem


@final
@dataclass(frozen=True)
class Verdict:
    """One backend's answer: eligible if nothing stands against it."""

    backend: Backend[Any]
    reasons: tuple[Reason, ...]

    @property
    def eligible(self) -> bool:
        """True if no reason stands against the backend."""
        return not self.reasons

    def __str__(self) -> str:
        if self.eligible:
            return f"{self.backend.name}: eligible"
        return "\n".join([f"{self.backend.name}: declined", *(f"  - {reason}" for reason in self.reasons)])


@final
@dataclass(frozen=True)
class Resolution:
    """Every backend's verdict, in order of preference; the first eligible one runs."""

    problem: Problem
    machine: Machine
    verdicts: tuple[Verdict, ...]

    @property
    def eligible(self) -> tuple[Backend[Any], ...]:
        """The backends without a reason against them, best first."""
        return tuple(verdict.backend for verdict in self.verdicts if verdict.eligible)

    @property
    def backend(self) -> Backend[Any]:
        """The backend that runs. Raises NoBackendError with the problem and every verdict if there is none."""
        if not self.eligible:
            raise NoBackendError(f"no backend serves this problem\n{self}")
        return self.eligible[0]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"problem: {self.problem!r}",
                f"machine: {self.machine!r}",
                *(map(str, self.verdicts) if self.verdicts else ["no backends were given"]),
            ]
        )


def resolve(problem: Problem, machine: Machine, backends: Sequence[Backend[Any]]) -> Resolution:
    """Ask every backend, in order. Raises BackendError if two share a name or one inherits its declaration.

    An exception inside a backend's own judgement is a fault of that backend and propagates with its name.
    """
    if not isinstance(machine, Machine):
        raise MachineError(
            f'the machine is {machine!r}, but it needs a Machine: Machine.current() or known_machine("h200")'
        )
    if isinstance(backends, str | Backend):
        raise BackendError(f"backends is {backends!r}, but it needs a sequence of backends, for instance (Cpu(),)")
    for backend in backends:
        _check_declared(backend)
    names = [backend.name for backend in backends]
    for name in names:
        if names.count(name) > 1:
            raise BackendError(f"{names.count(name)} backends are called {name!r}; give each its own name")
    return Resolution(problem, machine, tuple(_ask(backend, problem, machine) for backend in backends))


def _check_declared(backend: Backend[Any]) -> None:
    if not isinstance(backend, Backend):
        raise BackendError(f"{backend!r} is not a backend: give an instance, for instance Cpu()")
    for declared in ("name", "capabilities"):
        if declared not in vars(backend.__class__):
            raise BackendError(
                f"{backend.__class__.__name__} does not declare its own {declared}; it is never inherited"
            )


def _ask(backend: Backend[Any], problem: Problem, machine: Machine) -> Verdict:
    try:
        # The copy refuses an answer that is no sequence: None, from a forgotten return, must not read as eligible.
        return Verdict(backend, tuple(backend.reasons_against(problem, machine)))
    except BaseException as fault:
        fault.add_note(f"while the backend {backend.name} judged {problem!r}")
        raise
