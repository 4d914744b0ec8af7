"""Bent: a loopback of four uneven ranks with one defect in what it hands out or makes of what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, Routing
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.judge_dispatch import DispatchJudge
from moesaic.dispatch.fleet import Call, Fleet
from moesaic.dispatch.loopback import Loopback, LoopbackReceipt
from moesaic.dispatch.row_transports import Expanded, Slabs
from moesaic.dispatch.token_transports import Deduplicated, Gathered
from moesaic.dispatch.transport import Transport
from moesaic.layouts import Layout

DISTINCT = DispatchJudge(duplicate_ids=False)
"""For transports whose buffers are made for distinct experts in a token."""


def honest(transport: Transport) -> Loopback:
    """Ten experts on four ranks (3, 3, 2 and 2), in rows that are as wide as the next multiple of 64."""
    return Loopback(num_experts=10, num_ranks=4, hidden_multiple=64, transport=transport)


GATHERED = honest(Gathered())
DEDUPLICATED = honest(Deduplicated(max_tokens=8))
EXPANDED = honest(Expanded(alignment=8))
SLABS = honest(Slabs(max_tokens=8))


@dataclass(frozen=True, kw_only=True)
class Bent(Fleet[LoopbackReceipt]):
    """`inner` with one method overridden."""

    title: ClassVar[str]

    num_experts: int = 10
    num_ranks: int = 4
    inner: Loopback

    @property
    @override
    def layout(self) -> Layout:
        return self.inner.layout

    @property
    @override
    def played(self) -> tuple[int, ...]:
        return self.inner.played

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        return self.inner.dispatch_all(calls)

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        return self.inner.combine_all(rows, receipts)


def of_fleet(subject: Bent, check: str) -> Mutant:
    """A mutant whose name and meaning are those of its class."""
    judge = DISTINCT if subject.inner == SLABS else DispatchJudge()
    return Mutant(
        name=subject.title,
        meaning=(subject.__class__.__doc__ or subject.title).splitlines()[0],
        check=check,
        subject=subject,
        control=subject.inner,
        judge=judge,
    )


def with_ids(calls: Sequence[Call], ids: Sequence[Tensor]) -> list[Call]:
    """The same calls with other ids."""
    return [
        (hidden, Routing(own.to(routing.topk_ids.dtype), routing.topk_weights))
        for own, (hidden, routing) in zip(ids, calls, strict=True)
    ]


def routing_of(batch: Batch) -> Routing:
    """The routing of a batch that carries one."""
    if isinstance(batch, GroupedBatch | BatchedBatch):
        raise TypeError(f"{batch.layout!r} carries no routing")
    return batch.routing
