"""Mutants of dispatch: what a rank is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.bent import (
    DEDUPLICATED,
    EXPANDED,
    GATHERED,
    SLABS,
    Bent,
    of_fleet,
    with_ids,
)
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.loopback import LoopbackReceipt


def routing_of(batch: Batch) -> Routing:
    """The routing of a batch that carries one."""
    if isinstance(batch, GroupedBatch | BatchedBatch):
        raise TypeError(f"{batch.layout!r} carries no routing")
    return batch.routing


def with_local_ids(batch: Batch, ids: Tensor) -> Batch:
    """The same batch with other ids."""
    if isinstance(batch, GroupedBatch | BatchedBatch):
        return batch
    return replace(batch, routing=replace(batch.routing, topk_ids=ids))


def shifted(batch: Batch, by: int) -> Batch:
    """Every id moved by `by`."""
    ids = routing_of(batch).topk_ids.long() + by
    return with_local_ids(batch, ids.clamp(-(2**31), 2**31 - 1).int())


def without(batch: Batch, expert: int) -> Batch:
    """The slots of one local expert made inactive."""
    ids = routing_of(batch).topk_ids
    return with_local_ids(batch, torch.where(ids == expert, -1, ids))


def clamped(batch: Batch, held: int) -> Batch:
    """Ids of other ranks that are below the rank's own taken for its first expert."""
    ids = routing_of(batch).topk_ids
    return with_local_ids(batch, torch.where((ids < 0) & (ids >= -held), 0, ids))


def first_rows(batch: Batch, most: int) -> Batch:
    """Every slot past the first `most` rows made inactive."""
    ids = routing_of(batch).topk_ids
    return with_local_ids(batch, torch.where(torch.arange(len(ids)).unsqueeze(1) < most, ids, -1))


@final
@dataclass(frozen=True, kw_only=True)
class EvenOffsets(Bent):
    """Ranks 2 and 3 begin at 4 and 6, as if each rank held as many experts as itself."""

    title: ClassVar[str] = "F76_offsets_of_even_ranks"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        ids = [routing.topk_ids for _, routing in calls]
        return self.inner.dispatch_all(with_ids(calls, [torch.where((i >= 4) & (i < 8), i + 2, i) for i in ids]))


@final
@dataclass(frozen=True, kw_only=True)
class TranslatedTwice(Bent):
    """The first expert of a rank is subtracted from its ids twice."""

    title: ClassVar[str] = "F78_ids_translated_twice"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [(shifted(batch, -self.experts(rank).start), receipt) for rank, (batch, receipt) in enumerate(delivered)]


@final
@dataclass(frozen=True, kw_only=True)
class NeverTranslated(Bent):
    """Ids of the model are handed out as if they were local."""

    title: ClassVar[str] = "F78_ids_not_translated"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [(shifted(batch, self.experts(rank).start), receipt) for rank, (batch, receipt) in enumerate(delivered)]


@final
@dataclass(frozen=True, kw_only=True)
class OffByOneExpert(Bent):
    """The last expert of each rank is taken for the next rank's first."""

    title: ClassVar[str] = "F78_last_expert_of_a_rank_lost"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [
            (without(batch, len(self.experts(rank)) - 1), receipt) for rank, (batch, receipt) in enumerate(delivered)
        ]


@final
@dataclass(frozen=True, kw_only=True)
class MinusOneIsLast(Bent):
    """The id -1 counts from the end."""

    title: ClassVar[str] = "F14_minus_one_is_the_last_expert_of_all"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        named = [
            (hidden, Routing(torch.where(r.topk_ids == -1, 9, r.topk_ids), r.topk_weights.nan_to_num(nan=1.0)))
            for hidden, r in calls
        ]
        return self.inner.dispatch_all(named)


@final
@dataclass(frozen=True, kw_only=True)
class SomeRemoteExpert(Bent):
    """The id -1 is replaced by an expert of another rank, which that rank computes."""

    title: ClassVar[str] = "F23_inactive_slot_sent_to_some_expert"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        ids = [torch.where(r.topk_ids == -1, (rank * 3 + 5) % 10, r.topk_ids) for rank, (_, r) in enumerate(calls)]
        return self.inner.dispatch_all(with_ids(calls, ids))


@final
@dataclass(frozen=True, kw_only=True)
class RemoteIsLocal(Bent):
    """An id of another rank is replaced by the rank's first expert."""

    title: ClassVar[str] = "F23_remote_id_replaced_by_a_local_one"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [(clamped(batch, len(self.experts(rank))), receipt) for rank, (batch, receipt) in enumerate(delivered)]


@final
@dataclass(frozen=True, kw_only=True)
class HiddenTail(Bent):
    """Columns past the last whole 64 do not travel."""

    title: ClassVar[str] = "F24_tail_of_h_does_not_travel"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        cut = [(torch.cat([h[:, :64], torch.zeros_like(h[:, 64:])], 1), r) for h, r in calls]
        return self.inner.dispatch_all(cut)


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


@final
@dataclass(frozen=True, kw_only=True)
class SlotLost(Bent):
    """The last slot of a token does not travel."""

    title: ClassVar[str] = "F81_last_slot_does_not_travel"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        ids = [torch.cat([r.topk_ids[:, :-1], torch.full_like(r.topk_ids[:, -1:], -1)], 1) for _, r in calls]
        return self.inner.dispatch_all(with_ids(calls, ids))


@final
@dataclass(frozen=True, kw_only=True)
class EmptyRankFails(Bent):
    """A rank without a token is an error."""

    title: ClassVar[str] = "F79_rank_without_tokens_raises"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        if any(len(hidden) == 0 for hidden, _ in calls):
            raise ZeroDivisionError("tokens of a rank")
        return self.inner.dispatch_all(calls)


@final
@dataclass(frozen=True, kw_only=True)
class OnlyLocal(Bent):
    """Tokens travel only if their own rank holds the expert."""

    title: ClassVar[str] = "F78_only_local_experts_are_reached"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        ids = [
            torch.where((r.topk_ids >= own.start) & (r.topk_ids < own.stop), r.topk_ids, -1)
            for (_, r), own in zip(calls, map(self.experts, range(self.num_ranks)), strict=True)
        ]
        return self.inner.dispatch_all(with_ids(calls, ids))


@final
@dataclass(frozen=True, kw_only=True)
class RewritesIds(Bent):
    """Inactive ids are clamped in place."""

    title: ClassVar[str] = "F27_ids_clamped_in_place"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        for _, routing in calls:
            routing.topk_ids.clamp_(max=self.num_experts)
        return self.inner.dispatch_all(calls)


@final
@dataclass(frozen=True, kw_only=True)
class HotRankCut(Bent):
    """A rank takes at most twelve rows; the rest is dropped without a word."""

    title: ClassVar[str] = "F81_rows_past_the_buffer_dropped"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [(first_rows(batch, 12), receipt) for batch, receipt in delivered]


MUTANTS: tuple[Mutant, ...] = (
    of_fleet(EvenOffsets(inner=GATHERED), "every_pair"),
    of_fleet(TranslatedTwice(inner=GATHERED), "exactly_once"),
    of_fleet(NeverTranslated(inner=GATHERED), "exactly_once"),
    of_fleet(OffByOneExpert(inner=DEDUPLICATED), "every_pair"),
    of_fleet(MinusOneIsLast(inner=GATHERED), "garbage_ids"),
    of_fleet(SomeRemoteExpert(inner=EXPANDED), "every_pair"),
    of_fleet(RemoteIsLocal(inner=GATHERED), "every_pair"),
    of_fleet(HiddenTail(inner=EXPANDED), "exactly_once"),
    of_fleet(NotCutBack(inner=EXPANDED), "every_pair"),
    of_fleet(TailAsLive(inner=SLABS), "every_pair"),
    of_fleet(CountsBeyondCapacity(inner=SLABS), "every_pair"),
    of_fleet(PaddedAsStandard(inner=DEDUPLICATED), "every_pair"),
    of_fleet(AlignmentLost(inner=EXPANDED), "every_pair"),
    of_fleet(GroupsOverlap(inner=EXPANDED), "every_pair"),
    of_fleet(ValidCountTooSmall(inner=DEDUPLICATED), "every_pair"),
    of_fleet(SlotLost(inner=EXPANDED), "every_pair"),
    of_fleet(EmptyRankFails(inner=GATHERED), "every_pair"),
    of_fleet(OnlyLocal(inner=GATHERED), "every_pair"),
    of_fleet(RewritesIds(inner=GATHERED), "ownership"),
    of_fleet(HotRankCut(inner=DEDUPLICATED), "every_pair"),
)
