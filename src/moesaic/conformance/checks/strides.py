"""Tensors that are views: transposed, cut out of something wider or longer, shifted off every alignment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import CALM, Place
from moesaic.conformance.oracle import placed
from moesaic.conformance.subject import Subject


@final
@dataclass(frozen=True)
class Strides(Check):
    """Rows, ids and weights as views of other memory are read as what they hold, within the tolerance.

    Meant for F62 and for kernels that take a pointer and assume rows, or experts, without gaps.
    """

    name: ClassVar[str] = "strides"
    meaning: ClassVar[str] = "a view is read as what it holds"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        for name, view in VIEWS.items():

            def viewed(values: Tensor, view: Place = view) -> Tensor:
                return view(subject.place(values))

            prepared = subject.prepare(case, placed(subject.oracle.weights(case), viewed))
            got = subject.rows(case, subject.feed(case, CALM, place=viewed), prepared)
            subject.compare(case, got, subject.oracle.rows(case), f"rows of tensors that are {name}")


def transposed(values: Tensor) -> Tensor:
    """The same values, the last dimension not the dense one."""
    return values.mT.contiguous().mT if values.ndim > 1 else values


def sliced(values: Tensor) -> Tensor:
    """The same values inside wider rows whose other columns hold NaN, or the largest integer."""
    if values.ndim == 0:
        return values
    wide = values.new_full((*values.shape[:-1], values.shape[-1] + 3), _poison(values))
    wide[..., 1:-2] = values
    return wide[..., 1:-2]


def cut(values: Tensor) -> Tensor:
    """The same values inside matrices with more rows, which hold NaN, or the largest integer."""
    if values.ndim < 2:
        return values
    tall = values.new_full((*values.shape[:-2], values.shape[-2] + 3, values.shape[-1]), _poison(values))
    tall[..., 1:-2, :] = values
    return tall[..., 1:-2, :]


def shifted(values: Tensor) -> Tensor:
    """The same values, beginning one element after an aligned address."""
    return torch.cat([values.new_full((1,), _poison(values)), values.flatten()])[1:].view(values.shape)


def _poison(values: Tensor) -> float | int:
    if values.is_floating_point():
        return math.nan
    return False if values.dtype == torch.bool else torch.iinfo(values.dtype).max


VIEWS: Mapping[str, Place] = {"transposed": transposed, "sliced": sliced, "cut": cut, "shifted": shifted}
"""In words, how a tensor may be a view."""
