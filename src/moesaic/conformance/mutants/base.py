"""Mutant: one thing that is wrong in one way, and Judge: the kit's own checks of its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from moesaic.errors import Nonconformance

DECLARATION = "declaration"
"""The name under which a judge reports what is malformed before any check can be tried."""


@dataclass(frozen=True)
class Judge(ABC):
    """Tries the checks of one kind of thing (backends, dispatchers, routers, formats, activations) on a subject.

    To add a kind, copy `judge_dispatch.py`: a final frozen dataclass with its own `kind`, the names of its checks in
    the order in which they are tried, and `faults`. A judge is a value; what one run shares is made inside `faults`.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def checks(self) -> tuple[str, ...]:
        """The names of all checks of this kind, each once."""

    @abstractmethod
    def faults(self, subject: Any, checks: Sequence[str]) -> Mapping[str, str]:
        """Those of `checks` that find something in `subject`, each with the first fault that it finds, in words.

        A check that raises anything has found something too. Never raises for a fault of the subject.
        """


@final
@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A seeded defect. `name`: the fault id of the catalogue and the defect in words, `F07_gate_and_up_exchanged`.

    `check`: the check that is meant to find it. `subject` is wrong in that one way; `control` is the same thing
    without the defect, and every check passes it. `judge` knows the checks of this kind.
    """

    name: str
    meaning: str
    check: str
    subject: Any
    control: Any
    judge: Judge

    def __post_init__(self) -> None:
        if self.check not in (DECLARATION, *self.judge.checks):
            known = ", ".join(self.judge.checks)
            raise Nonconformance(f"the check of mutant {self.name}", f"one of {known}", self.check)


@final
@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, or of a control: `found` are all checks that found something, with what they found."""

    name: str
    meant: str
    found: Mapping[str, str]

    @property
    def killed(self) -> bool:
        """Whether any check found something."""
        return bool(self.found)

    @property
    def as_meant(self) -> bool:
        """Whether the check that is meant to find it did."""
        return self.meant in self.found


def verdict(mutant: Mutant, checks: Sequence[str] | None = None) -> Verdict:
    """Try `checks`, by default all of the kind, on a mutant."""
    chosen = mutant.judge.checks if checks is None else tuple(checks)
    return Verdict(mutant.name, mutant.check, dict(mutant.judge.faults(mutant.subject, chosen)))
