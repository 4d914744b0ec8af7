"""Mutants of dispatch: tokens, slots and ids that reach the wrong rank or expert, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, Routing
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.bent import (
    DEDUPLICATED,
    EXPANDED,
    GATHERED,
    Bent,
    of_fleet,
    routing_of,
    with_ids,
)
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.loopback import LoopbackReceipt


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
class InactiveWithWeightZero(Bent):
    """An inactive slot is sent to some expert with weight zero."""

    title: ClassVar[str] = "F18_inactive_slot_sent_with_weight_zero"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        named: list[Call] = []
        for hidden, r in calls:
            ids, weights = r.topk_ids.clone(), r.topk_weights.clone()
            inactive = (ids < 0) | (ids >= self.num_experts)
            for token in torch.where(inactive.any(1))[0].tolist():
                slot = int(inactive[token].int().argmax())
                ids[token, slot] = next(e for e in range(self.num_experts) if not bool((ids[token] == e).any()))
                weights[token, slot] = 0.0
            named.append((hidden, Routing(ids, weights)))
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
    of_fleet(InactiveWithWeightZero(inner=GATHERED), "every_pair"),
    of_fleet(SomeRemoteExpert(inner=EXPANDED), "every_pair"),
    of_fleet(RemoteIsLocal(inner=GATHERED), "every_pair"),
    of_fleet(HiddenTail(inner=EXPANDED), "exactly_once"),
    of_fleet(SlotLost(inner=EXPANDED), "every_pair"),
    of_fleet(EmptyRankFails(inner=GATHERED), "every_pair"),
    of_fleet(OnlyLocal(inner=GATHERED), "every_pair"),
    of_fleet(RewritesIds(inner=GATHERED), "ownership"),
    of_fleet(HotRankCut(inner=DEDUPLICATED), "every_pair"),
)
