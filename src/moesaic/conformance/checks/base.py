"""Check: one promise of the contract, tried on one case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from moesaic.backends.base import Backend
from moesaic.conformance.case import Case
from moesaic.conformance.plainest import base_case, finest
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
    before_all: ClassVar[bool] = False
    """Whether it is run before every other check: what is set once for a process shows at the first call only."""

    with_all_constants: ClassVar[bool] = False
    """Whether it is tried on the cases that move nothing but an activation's constants, a third of a quick kit."""

    with_whole_tiles: ClassVar[bool] = False
    """Whether it is tried on columns that fill every tile in every dtype, a fifth of a quick kit, or in the finest."""

    with_many_experts: ClassVar[bool] = False
    """Whether it is tried on the few cases of many experts, each of which takes as long as ten others."""

    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        """Why there is nothing to try for `case`; None if there is. Pure, and the device does not matter."""
        if case.is_large:
            return "a large case: values and poison only"
        if case.has_many_experts and not self.with_many_experts:
            return "many experts: values, poison, markers and workspace only"
        if not self.with_whole_tiles and fills_tiles_only(backend, case):
            return "columns that fill every tile, in a dtype that is not the finest: values and memory only"
        if not self.with_all_constants and moves_constants_only(backend, case):
            return "what the constants of the activation are does not matter here"
        return None

    @abstractmethod
    def run(self, subject: Subject, case: Case) -> None:
        """Try the promise. Raises Nonconformance with what was looked at, wanted and got if it is not kept."""


def plain_case(backend: Backend[Any], case: Case) -> Case:
    """The plainest case of the dtype and the layout of `case`."""
    return base_case(backend.capabilities, case.problem.dtype).in_layout(case.fed)


def has_plain_sizes(backend: Backend[Any], case: Case) -> bool:
    """Whether E, H and I of `case` are those of the plainest case: enough for what does not depend on sizes."""
    return _sizes(case) == _sizes(plain_case(backend, case))


def has_plain_filling(backend: Backend[Any], case: Case) -> bool:
    """Whether tokens, load and padding of `case` are those of the plainest case."""
    return replace(plain_case(backend, case), problem=case.problem, fed=case.fed) == case


def fills_tiles_only(backend: Backend[Any], case: Case) -> bool:
    """Whether `case` is there for columns that fill every tile of 16 alone, in a dtype that is not the finest.

    Where rows are multiples of 32 bytes or more, those of the plainest case fill their tiles too, and keep all checks.
    """
    problem, plain = case.problem, plain_case(backend, case)
    if problem.dtype == finest(backend.capabilities) or has_plain_sizes(backend, case):
        return False
    if problem.hidden_size % 16 or problem.intermediate_size % 16:
        return False
    columns = {"hidden_size": problem.hidden_size, "intermediate_size": problem.intermediate_size}
    return case.problem == plain.changed(**columns).problem


def _sizes(case: Case) -> tuple[int, int, int]:
    return case.problem.num_experts, case.problem.hidden_size, case.problem.intermediate_size


def moves_constants_only(backend: Backend[Any], case: Case) -> bool:
    """Whether `case` is the base case but for constants that are not at their default."""
    activation = case.problem.activation
    if activation == activation.__class__():
        return False
    base = base_case(backend.capabilities)
    return case.changed(activation=base.problem.activation) == base
