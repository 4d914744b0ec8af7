"""Check: one promise of the contract, tried on one case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.cases import base_case
from moesaic.conformance.subject import Subject


@dataclass(frozen=True)
class Check(ABC):
    """One promise of the contract.

    To add one, copy a file beside this: a final frozen dataclass with a `name`, the promise as one line in `meaning`,
    and `run`, and a line in `CHECKS`. Its docstring says which public faults it is meant to find.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    device: ClassVar[str | None] = None
    """The only kind of device on which the promise can be tried; None for any."""
    with_all_constants: ClassVar[bool] = False
    """Whether it is tried on the cases that move nothing but an activation's constants, a third of a quick kit."""

    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        """Why there is nothing to try for `case`; None if there is. Pure, and the device does not matter."""
        if case.is_large:
            return "a large case: values and poison only"
        if not self.with_all_constants and moves_constants_only(backend, case):
            return "what the constants of the activation are does not matter here"
        return None

    @abstractmethod
    def run(self, subject: Subject, case: Case) -> None:
        """Try the promise. Raises Nonconformance with what was looked at, wanted and got if it is not kept."""


def moves_constants_only(backend: Backend[Any], case: Case) -> bool:
    """Whether `case` is the base case but for constants that are not at their default."""
    base = base_case(backend.capabilities)
    activation = case.problem.activation
    return case.changed(activation=base.problem.activation) == base and activation != activation.__class__()
