"""base_case: the plainest case that a declaration admits, and what of a declaration every case is made from."""

from __future__ import annotations

import functools
import math

import torch

from moesaic.backends.capabilities import Accepts, Capabilities
from moesaic.conformance.case import Case
from moesaic.conformance.unlisted import UnlistedActivation
from moesaic.errors import FormatError
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout, PaddedStandard, Standard
from moesaic.problem import Problem
from moesaic.quant import Scheme


@functools.cache
def base_case(can: Capabilities, dtype: torch.dtype | None = None) -> Case:
    """Five experts, top-3, sizes that are multiples of what the backend asks for and of no tile; the finest dtype."""
    chosen = finest(can) if dtype is None else dtype
    layout = produced_layouts(can)[0]
    problem = Problem(
        num_experts=min(5, can.max_experts),
        top_k=min(3, can.max_top_k),
        hidden_size=fitted(72, can, chosen),
        intermediate_size=fitted(40, can, chosen),
        activation=listed(can)[0].activation(),
        dtype=chosen,
        scheme=can.schemes[0],
        layout=layout,
        inactive_slots=can.inactive_slots,
        duplicate_ids=can.duplicate_ids,
        deterministic=can.deterministic,
    )
    return Case(problem=problem, fed=layout)


def finest(can: Capabilities) -> torch.dtype:
    """The declared dtype with the smallest rounding: where the noise is lowest a fault shows best."""
    return min(can.dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def fitted(columns: int, can: Capabilities, dtype: torch.dtype) -> int:
    """The first odd multiple of `row_bytes` from `columns` on that all schemes store, or else the first multiple."""
    step = max(1, can.row_bytes // dtype.itemsize)
    times = -(-columns // step)
    candidates = (*range(times | 1, times + 9, 2), *range(times, times + 257))
    return step * next(n for n in candidates if all(_is_stored(scheme, step * n) for scheme in can.schemes))


def aligned(columns: int, can: Capabilities, dtype: torch.dtype) -> int:
    """The first multiple of `row_bytes` and of the tile of 16 or 128 that `columns` fills, which all schemes store."""
    step = math.lcm(columns & -columns, max(1, can.row_bytes // dtype.itemsize))
    times = -(-columns // step)
    return step * next(
        n for n in range(times, times + 257) if all(_is_stored(scheme, step * n) for scheme in can.schemes)
    )


def _is_stored(scheme: Scheme, columns: int) -> bool:
    try:
        scheme.check_columns(columns)
    except FormatError:
        return False
    return True


def listed(can: Capabilities) -> tuple[Accepts, ...]:
    """The activations that are accepted; one that is in no list stands for "any activation"."""
    return (*can.activations, Accepts.everything(UnlistedActivation)) if can.any_activation else can.activations


def produced_layouts(can: Capabilities) -> tuple[Layout, ...]:
    """Every layout that may be fed to the backend: Standard to a PaddedStandard consumer, wider alignments too."""
    aligned = [c.alignment for c in can.layouts if isinstance(c, GroupedContiguous)]
    groups = (GroupedContiguous(a * times) for a in aligned for times in (1, 8))
    every = (Standard(), PaddedStandard(), *groups, BatchedExperts(), *can.layouts)
    return tuple(dict.fromkeys(p for p in every if any(c.accepts(p) for c in can.layouts)))
