"""Offsets beyond 32 bits: rows, what lies between the projections, and weights. On CUDA, since they take gigabytes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.contents import Contents
from moesaic.conformance.feeding import CALM
from moesaic.conformance.oracle import placed
from moesaic.conformance.plainest import aligned, base_case, produced_layouts
from moesaic.conformance.subject import Subject
from moesaic.conformance.tiled import tiled

BEYOND = 2**31
"""Elements from which a 32-bit offset is wrong."""

MOST_BYTES = 60 * 2**30
"""Of weights, batch and stated workspace together; what would take more is left out with the figure."""

TOKENS = 60
"""Tokens that are repeated; their slots spread evenly over five experts."""

EXPERTS = 512
"""Of the layer whose weights are large, so that three of them are drawn and computed exactly in a second."""


@dataclass(frozen=True)
class Large(Check):
    """One case for each kind of layout, in the coarsest dtype. `beyond`: elements that offsets are to exceed."""

    device: ClassVar[str | None] = "cuda"

    beyond: int = BEYOND

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        can = backend.capabilities
        coarse = max(can.dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        if case != base_case(can, coarse).in_layout(case.fed) or not _is_first_of_its_kind(can, case):
            return "one case for each kind of layout is enough"
        return self.unfit(backend, case)

    @abstractmethod
    def unfit(self, backend: Backend[Any], case: Case) -> str | None:
        """Why what would be run for that case is not; None if it is."""


@dataclass(frozen=True)
class LargeTiles(Large):
    """A small batch so many times over that rows times columns exceed `beyond`; first, middle and last are compared."""

    @abstractmethod
    def small(self, can: Capabilities, case: Case) -> Case:
        """What is repeated."""

    @abstractmethod
    def columns(self, backend: Backend[Any], small: Case) -> int:
        """Columns of the rows whose offsets are to exceed `beyond`."""

    @override
    def unfit(self, backend: Backend[Any], case: Case) -> str | None:
        small = self.small(backend.capabilities, case)
        return _too_much(self.bytes_for(backend, small, self.columns(backend, small)))

    @override
    def run(self, subject: Subject, case: Case) -> None:
        small = self.small(subject.backend.capabilities, case)
        prepared, contents = subject.prepare(small), _even(subject, small)
        times = self.times(small, self.columns(subject.backend, small))
        many = tiled(subject.feed(small, CALM, contents=contents), times)
        wanted = subject.exact(small, contents, subject.oracle.weights(small))
        got = subject.run(small, many.batch, prepared).flatten(0, -2)
        for repetition in (0, times // 2, times - 1):
            rows = got[many.places(repetition)].cpu()
            subject.compare(small, rows, wanted, f"rows of repetition {repetition} of {times}")

    def times(self, small: Case, columns: int) -> int:
        """Repetitions that it takes, and two more."""
        return self.beyond // (TOKENS * small.problem.top_k * columns) + 2

    def bytes_for(self, backend: Backend[Any], small: Case, columns: int) -> int:
        """Bytes of workspace, rows and weights."""
        problem = small.problem
        rows = TOKENS * self.times(small, columns) * (1 if problem.layout.has_routing else problem.top_k)
        batch = rows * problem.hidden_size * problem.dtype.itemsize
        return backend.workspace(problem, rows) + batch + 2 * problem.weight_bytes


@final
@dataclass(frozen=True)
class LargeAddresses(LargeTiles):
    """Rows times H beyond 2**31, all of them live. Meant for F100 and F101: a grid dimension above 65,535 too."""

    name: ClassVar[str] = "large_addresses"
    meaning: ClassVar[str] = "offsets of rows beyond 2**31 elements are right"

    @override
    def small(self, can: Capabilities, case: Case) -> Case:
        return _sized(can, case, hidden=2048, inner=32, top_k=1)

    @override
    def columns(self, backend: Backend[Any], small: Case) -> int:
        return small.problem.hidden_size


@final
@dataclass(frozen=True)
class LargeInnerRows(LargeTiles):
    """(Token, slot) pairs times I beyond 2**31; times the columns of the first projection if that takes too much.

    Meant for F100 between the projections, which K and a wide I reach long before the rows do.
    """

    name: ClassVar[str] = "large_inner_rows"
    meaning: ClassVar[str] = "offsets between the projections beyond 2**31 elements are right"

    @override
    def small(self, can: Capabilities, case: Case) -> Case:
        return _sized(can, case, hidden=64, inner=8192, top_k=8)

    @override
    def columns(self, backend: Backend[Any], small: Case) -> int:
        inner = small.problem.intermediate_size
        return inner if self.bytes_for(backend, small, inner) <= MOST_BYTES else small.problem.width


@final
@dataclass(frozen=True)
class LargeWeights(Large):
    """Number of an expert times stored elements of its projections beyond 2**31; the first, a middle and the last run.

    The other experts are zeros, also in what a format stores. Meant for F100: `expert * stride`.
    """

    name: ClassVar[str] = "large_weights"
    meaning: ClassVar[str] = "offsets of experts beyond 2**31 elements are right"

    @override
    def unfit(self, backend: Backend[Any], case: Case) -> str | None:
        if backend.capabilities.max_experts == 1:
            return "one expert has no number"
        many = self.many(backend.capabilities, case).problem
        return _too_much(2 * many.weight_bytes + backend.workspace(many, TOKENS))

    def many(self, can: Capabilities, case: Case) -> Case:
        """The case whose weights are large."""
        experts, stored = min(EXPERTS, can.max_experts), case.problem.scheme.weights.storage((256, 256), torch.bfloat16)
        values = self.beyond * 256 * 256 // math.prod(stored["data"].shape)  # two to a byte in a format of four bits
        side = 16 * -(-math.isqrt(values // (experts - 1)) // 16) + 16
        return _sized(can, case.changed(num_experts=experts), hidden=side, inner=side, top_k=1)

    @override
    def run(self, subject: Subject, case: Case) -> None:
        many = self.many(subject.backend.capabilities, case)
        last = many.problem.num_experts - 1
        chosen = torch.tensor(sorted({0, last // 2, last}))
        few = many.changed(num_experts=len(chosen))
        given, weights = _even(subject, few), subject.oracle.weights(few)
        wanted = subject.exact(few, given, weights)

        def among_zeros(values: Tensor) -> Tensor:
            return _among_zeros(values, chosen, many.problem.num_experts, subject.device)

        # What it is prepared into may be as large, so nobody holds the canonical weights meanwhile.
        prepared = subject.prepare(many, placed(weights, among_zeros))
        contents = replace(given, ids=chosen.int()[given.ids.long()])
        got = subject.rows(many, subject.feed(many, CALM, contents=contents), prepared)
        subject.compare(many, got, wanted, f"rows of the experts {chosen.tolist()}")


def _is_first_of_its_kind(can: Capabilities, case: Case) -> bool:
    """Whether no layout before that of `case` has its rows in the same places, but for gaps."""
    fed = case.fed
    alike = (p for p in produced_layouts(can) if p.has_routing == fed.has_routing)
    return fed == next(p for p in alike if p.has_routing or isinstance(p, fed.__class__))


def _sized(can: Capabilities, case: Case, *, hidden: int, inner: int, top_k: int) -> Case:
    """Without inactive slots, so that every (token, slot) pair is a row."""
    problem, dtype = case.problem, case.problem.dtype
    slots = can.max_top_k if can.duplicate_ids else min(can.max_top_k, problem.num_experts)
    changed = case.changed(
        hidden_size=aligned(hidden, can, dtype),
        intermediate_size=aligned(inner, can, dtype),
        top_k=min(top_k, slots),
        inactive_slots=False,
    )
    return replace(changed, num_tokens=TOKENS, padding=0.0)


def _even(subject: Subject, case: Case) -> Contents:
    """The contents of `case`, with slots that name all experts in turn, so that no slab is larger than another."""
    given = subject.oracle.contents(case)
    tokens, slots = given.ids.shape
    ids = torch.arange(tokens * slots, dtype=torch.int32).view(tokens, slots) % case.problem.num_experts
    return replace(given, ids=ids)


def _among_zeros(values: Tensor, experts: Tensor, num_experts: int, device: torch.device) -> Tensor:
    """`[num_experts, ...]` on `device`: `values [n, ...]` at `experts`, whose number is n, and zero bytes elsewhere."""
    rows = values.contiguous().view(len(values), -1).view(torch.uint8)
    whole = torch.zeros(num_experts, rows.shape[1], dtype=torch.uint8, device=device)
    whole[experts.to(device)] = rows.to(device)
    return whole.view(values.dtype).view(num_experts, *values.shape[1:])


def _too_much(needed: int) -> str | None:
    if needed <= MOST_BYTES:
        return None
    return f"it may take {needed / 2**30:.0f} GiB, above the {MOST_BYTES / 2**30:.0f} that the kit asks of a device"
