"""Whose memory is whose: inputs and canonical weights stay as they are, outputs are the caller's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch
from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import CALM, NAN
from moesaic.conformance.subject import Subject
from moesaic.errors import Nonconformance, WeightsError

HELD = 8
"""Outputs that are held while another one is made: layers that keep theirs for a backward pass or a skip."""


@final
@dataclass(frozen=True)
class InputsUnchanged(Check):
    """Batch, canonical weights and prepared tensors have the same bytes after `prepare` and two runs.

    Meant for F27, F52, F90 and F104: in-place scaling, ids rewritten, a prepare that changes what it was given.
    """

    name: ClassVar[str] = "inputs_unchanged"
    meaning: ClassVar[str] = "batch, canonical and prepared weights keep their bytes"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        weights, fed = subject.weights(case), subject.feed(case, NAN)
        given, inputs = _copies(weights.tensors), _copies(batch_tensors(fed.batch))
        prepared = subject.prepare(case, weights)
        _unchanged("the canonical weights after prepare", weights.tensors, given)
        kept = _copies(subject.backend.tensors(prepared))
        for _ in range(2):
            subject.run(case, fed.batch, prepared)
        _unchanged("the batch after two runs", batch_tensors(fed.batch), inputs)
        _unchanged("the canonical weights after two runs", weights.tensors, given)
        _unchanged("the prepared weights after two runs", subject.backend.tensors(prepared), kept)


@final
@dataclass(frozen=True)
class CanonicalWeights(Check):
    """`canonical(prepare(weights))` are the canonical weights bit for bit, after a run too. Meant for F52, F53, F90.

    `tensors` names something, and whatever memory two calls of `canonical` share: what is not named is neither counted
    nor moved.
    """

    name: ClassVar[str] = "canonical_weights"
    meaning: ClassVar[str] = "prepare loses no bit of the weights"

    @override
    def applies(self, backend: Backend[Any], case: Case) -> str | None:
        return None

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared = subject.prepare(case)
        subject.run(case, subject.feed(case, CALM).batch, prepared)
        returned = subject.backend.canonical(prepared, case.problem)
        try:
            returned.check(case.problem)
        except WeightsError as fault:
            raise Nonconformance(
                "the canonical weights that come back", "weights of the problem", str(fault)
            ) from fault
        _unchanged("the canonical weights that come back", returned.tensors, _copies(subject.weights(case).tensors))
        self._named(subject, case, prepared, returned.tensors)

    @staticmethod
    def _named(subject: Subject, case: Case, prepared: Any, returned: tuple[Tensor, ...]) -> None:
        named = {_storage(tensor) for tensor in subject.backend.tensors(prepared)}
        again = subject.backend.canonical(prepared, case.problem).tensors
        held = {_storage(t) for t in returned if t.numel()} & {_storage(t) for t in again if t.numel()}
        if not named:
            raise Nonconformance("what tensors() names of prepared weights", "at least one tensor", "none")
        if not held <= named:
            left = f"{len(held - named)} of {len(held)} left out"
            raise Nonconformance("what tensors() names", "all memory that canonical() hands out of it", left)


@final
@dataclass(frozen=True)
class PrepareTwice(Check):
    """Preparing the same value again gives the same answer and leaves the first usable. Meant for F52."""

    name: ClassVar[str] = "prepare_twice"
    meaning: ClassVar[str] = "prepare can be called again with the same weights"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        weights, fed = subject.weights(case), subject.feed(case, CALM)
        first = subject.prepare(case, weights)
        wanted = subject.rows(case, fed, first)
        second = subject.prepare(case, weights)
        subject.same(case, subject.rows(case, fed, second), wanted, "rows from weights that were prepared again")
        subject.same(case, subject.rows(case, fed, first), wanted, "rows from the first prepared weights")


@final
@dataclass(frozen=True)
class OwnOutput(Check):
    """The output shares no storage with inputs, weights, prepared tensors or any of the outputs before it.

    Meant for F27 and F93: a buffer that is handed out again, at once or after a ring of others.
    """

    name: ClassVar[str] = "own_output"
    meaning: ClassVar[str] = "an output shares memory with nothing"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        weights, fed = subject.weights(case), subject.feed(case, CALM)
        prepared = subject.prepare(case, weights)
        outputs = [subject.run(case, fed.batch, prepared) for _ in range(HELD + 1)]
        last = outputs.pop()
        others = {
            "the batch": batch_tensors(fed.batch),
            "the canonical weights": weights.tensors,
            "the prepared weights": subject.backend.tensors(prepared),
            "an earlier output": outputs,
        }
        for owner, tensors in others.items():
            if last.numel() and _storage(last) in {_storage(t) for t in tensors}:
                raise Nonconformance("the memory of the output", "memory of its own", f"that of {owner}")


def batch_tensors(batch: Batch) -> tuple[Tensor, ...]:
    """Every tensor of a batch."""
    match batch:
        case GroupedBatch():
            return batch.rows, batch.offsets, batch.counts
        case BatchedBatch():
            return batch.rows, batch.counts
        case _:
            valid = batch.num_valid if isinstance(batch, PaddedStandardBatch) else None
            routed = (batch.hidden_states, batch.routing.topk_ids, batch.routing.topk_weights)
            return routed if valid is None else (*routed, valid)


def as_bytes(values: Tensor) -> Tensor:
    """The bytes of a dense tensor; NaN compares equal to itself there."""
    return values.detach().contiguous().reshape(-1).view(torch.uint8).cpu()


def _copies(tensors: Iterable[Tensor]) -> list[Tensor | None]:
    # A tensor in an opaque layout (oneDNN's packed weights) has no bytes to look at.
    return [as_bytes(t).clone() if t.layout == torch.strided else None for t in tensors]


def _unchanged(what: str, tensors: Iterable[Tensor], before: list[Tensor | None]) -> None:
    now = _copies(tensors)
    if len(now) != len(before):
        raise Nonconformance(what, f"{len(before)} tensors", f"{len(now)}")
    for index, (after, kept) in enumerate(zip(now, before, strict=True)):
        if after is None or kept is None:
            continue
        if after.shape != kept.shape or not torch.equal(after, kept):
            changed = "other sizes" if after.shape != kept.shape else f"{int((after != kept).sum())} other bytes"
            raise Nonconformance(what, "the same bytes", f"{changed} in tensor {index} of {len(now)}")


def _storage(values: Tensor) -> int:
    return values.untyped_storage().data_ptr() if values.layout == torch.strided else id(values)
