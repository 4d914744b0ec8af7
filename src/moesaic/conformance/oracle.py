"""Oracle: contents, weights and the exact rows of cases, each computed once in one run of the kit."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from moesaic.backends import Reference
from moesaic.conformance.case import Case
from moesaic.conformance.contents import Contents, contents_of, weights_of
from moesaic.conformance.feeding import CALM, Place, feed
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights

KEPT_BYTES = 1 << 28
"""Of weights that stay in memory beside those asked for last: all of the small cases, one or two of the large."""


@final
class Oracle:
    """`Reference` in float64 on the CPU, whatever the dtype and the device of the subject.

    Holds what it computed; make one for a run and drop it with the run.
    """

    def __init__(self) -> None:
        self._weights: OrderedDict[tuple[Problem, int], ExpertWeights] = OrderedDict()
        self._kept = 0
        self._rows: dict[Case, Tensor] = {}

    def contents(self, case: Case) -> Contents:
        """The contents of `case`, on the CPU."""
        return contents_of(case)

    def weights(self, case: Case) -> ExpertWeights:
        """The weights of `case` on the CPU; they are kept, so a subject gets a copy."""
        key = (case.problem, case.seed)
        if key not in self._weights:
            drawn = self._weights[key] = weights_of(case)
            self._kept += drawn.num_bytes
            while self._kept > KEPT_BYTES and len(self._weights) > 1:
                _, oldest = self._weights.popitem(last=False)
                self._kept -= oldest.num_bytes
        return self._weights[key]

    def rows(self, case: Case) -> Tensor:
        """The exact live rows of `case` `[R, H]`, float64."""
        if case not in self._rows:
            self._rows[case] = exact(case, self.contents(case), self.weights(case))
        return self._rows[case]


def exact(case: Case, contents: Contents, weights: ExpertWeights) -> Tensor:
    """The exact live rows `[R, H]` in float64 for any contents and weights; differentiable in both."""
    fed = feed(case, contents, CALM, _widened)
    problem = replace(case.problem, dtype=torch.float64)
    # Only plain weights are widened: the codes and scales of a format mean what they are.
    widened = placed(weights, _widened) if isinstance(weights.gate_up.format, Plain) else weights
    return Reference().run(fed.batch, widened, problem)[fed.live]


def placed(weights: ExpertWeights, place: Place) -> ExpertWeights:
    """The same weights with every tensor, scales included, put through `place`."""

    def stored(values: Quantized) -> Quantized:
        scales = {name: place(scale) for name, scale in values.scales.items()}
        return Quantized(values.format, place(values.data), scales, values.parts)

    def vector(values: Tensor | None) -> Tensor | None:
        return None if values is None else place(values)

    return ExpertWeights(
        stored(weights.gate_up),
        stored(weights.down),
        vector(weights.gate_up_bias),
        vector(weights.down_bias),
        vector(weights.output_scale),
    )


def _widened(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values
