"""Mutants of dispatch that hand out a batch which breaks the contract of its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, StandardBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.bent import (
    DEDUPLICATED,
    EXPANDED,
    SLABS,
    Bent,
    of_fleet,
    routing_of,
)
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.loopback import LoopbackReceipt


@final
@dataclass(frozen=True, kw_only=True)
class NotCutBack(Bent):
    """Rows come as wide as they travel and are not cut back."""

    title: ClassVar[str] = "F24_hidden_size_not_cut_back"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        wide = [(torch.nn.functional.pad(h, (0, -h.shape[1] % 64)), r) for h, r in calls]
        return self.inner.dispatch_all(wide)


@final
@dataclass(frozen=True, kw_only=True)
class TailAsLive(Bent):
    """The rest of a slab counts as rows."""

    title: ClassVar[str] = "F21_capacity_handed_out_as_count"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [
            (
                replace(b, counts=torch.full_like(b.counts, b.rows.shape[1])) if isinstance(b, BatchedBatch) else b,
                receipt,
            )
            for b, receipt in delivered
        ]


@final
@dataclass(frozen=True, kw_only=True)
class CountsBeyondCapacity(Bent):
    """Counts are handed out that are larger than a slab."""

    title: ClassVar[str] = "F21_counts_beyond_the_capacity"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [
            (replace(b, counts=b.counts + b.rows.shape[1]) if isinstance(b, BatchedBatch) else b, receipt)
            for b, receipt in delivered
        ]


@final
@dataclass(frozen=True, kw_only=True)
class PaddedAsStandard(Bent):
    """A batch with an undefined tail is handed out as Standard."""

    title: ClassVar[str] = "F19_undefined_tail_handed_out_as_rows"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [(StandardBatch(batch.rows, routing_of(batch)), receipt) for batch, receipt in delivered]


@final
@dataclass(frozen=True, kw_only=True)
class AlignmentLost(Bent):
    """Groups begin one row late, off the alignment that is declared."""

    title: ClassVar[str] = "F21_alignment_not_kept"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [
            (replace(b, offsets=b.offsets + 1) if isinstance(b, GroupedBatch) else b, receipt)
            for b, receipt in delivered
        ]


@final
@dataclass(frozen=True, kw_only=True)
class GroupsOverlap(Bent):
    """The count of a group reaches over its gap into the next."""

    title: ClassVar[str] = "F21_groups_overlap"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [
            (replace(b, counts=b.counts + 8) if isinstance(b, GroupedBatch) else b, receipt) for b, receipt in delivered
        ]


@final
@dataclass(frozen=True, kw_only=True)
class ValidCountTooSmall(Bent):
    """The count of valid rows is one too small."""

    title: ClassVar[str] = "F21_count_of_valid_rows_too_small"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [
            (replace(b, num_valid=(b.num_valid - 1).clamp(min=0)), receipt)
            if isinstance(b, PaddedStandardBatch) and b.num_valid is not None
            else (b, receipt)
            for b, receipt in delivered
        ]


MUTANTS: tuple[Mutant, ...] = (
    of_fleet(NotCutBack(inner=EXPANDED), "every_pair"),
    of_fleet(TailAsLive(inner=SLABS), "every_pair"),
    of_fleet(CountsBeyondCapacity(inner=SLABS), "every_pair"),
    of_fleet(PaddedAsStandard(inner=DEDUPLICATED), "every_pair"),
    of_fleet(AlignmentLost(inner=EXPANDED), "every_pair"),
    of_fleet(GroupsOverlap(inner=EXPANDED), "every_pair"),
    of_fleet(ValidCountTooSmall(inner=DEDUPLICATED), "every_pair"),
)
