"""Pieces that are plain values (activations, routers, formats): their checks, and what their pytest classes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from moesaic.conformance.figures import apart, figure
from moesaic.conformance.noting import pytest_command, repeated_by
from moesaic.errors import Nonconformance

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class PieceCheck(ABC, Generic[Subject]):
    """One promise of a piece. To add one, copy a class beside it and add a line to the tuple of its kind."""

    name: ClassVar[str]
    meaning: ClassVar[str]

    def applies(self, subject: Subject) -> str | None:
        """Why there is nothing to try, such as a fact that the author did not state; None if there is."""
        del subject
        return None

    @abstractmethod
    def run(self, subject: Subject) -> None:
        """Try the promise. Raises Nonconformance with what was looked at, wanted and got if it is not kept."""


class PieceConformance(ABC):
    """What ActivationConformance, RouterConformance and FormatConformance share: one test for each check."""

    checks: ClassVar[tuple[PieceCheck[Any], ...]]

    @classmethod
    @abstractmethod
    def subject(cls) -> Any:
        """The piece with the facts that the class states."""

    def test_promise(self, request: Any, check: PieceCheck[Any]) -> None:
        """One promise; skipped, with the reason, where a fact that it needs is not stated."""
        import pytest  # noqa: PLC0415

        subject = self.subject()
        reason = check.applies(subject)
        if reason is not None:
            pytest.skip(reason)
        with repeated_by(pytest_command(request)):
            check.run(subject)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """What pytest calls for each test method of the class."""
        if "check" in metafunc.fixturenames:
            metafunc.parametrize("check", self.checks, ids=[check.name for check in self.checks])


def equal_bits(got: Tensor, wanted: Tensor, what: str) -> None:
    """Raise Nonconformance unless both have one dtype, one shape and equal numbers; NaN equals NaN."""
    kept_form(got, wanted.dtype, tuple(wanted.shape), what)
    same = (got == wanted) | (got.isnan() & wanted.isnan()) if wanted.is_floating_point() else got == wanted
    raise_first(~same, got, wanted, what)


def close(got: Tensor, wanted: Tensor, allowed: Tensor, what: str) -> None:
    """Raise Nonconformance unless the error is within `allowed`; NaN and infinity must be where they are wanted."""
    got, wanted = got.double(), wanted.double()
    near = ((got - wanted).abs() <= allowed) | (got == wanted) | (got.isnan() & wanted.isnan())
    raise_first(~near, got, wanted, what)


def raise_first(wrong: Tensor, got: Tensor, wanted: Tensor, what: str) -> None:
    """Raise Nonconformance with the first place where `wrong` is true, if there is one."""
    if bool(wrong.any()):
        place = tuple(int(i) for i in wrong.nonzero()[0])
        needed, found = wanted[place].item(), got[place].item()
        such = int(wrong.sum())
        raise Nonconformance(f"{what} {list(place)}", figure(needed), f"{apart(found, needed)} ({such} such)")


def kept_form(got: Tensor, dtype: torch.dtype, shape: tuple[int, ...], what: str) -> None:
    """Raise Nonconformance unless `got` has the dtype and the shape."""
    if got.dtype != dtype or tuple(got.shape) != shape:
        raise Nonconformance(f"the form of {what}", f"{dtype} of shape {shape}", f"{got.dtype} of {tuple(got.shape)}")


def memory(values: Tensor) -> int:
    """What two tensors of one storage have in common."""
    return values.untyped_storage().data_ptr()
