"""LoopbackRank: one rank of a loopback as a dispatcher, so that an `MoE` layer runs on it unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, Routing
from moesaic.checks import instance
from moesaic.dispatch.base import Dispatcher
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.loopback import Loopback, LoopbackReceipt
from moesaic.errors import DispatchError
from moesaic.layouts import Layout


@final
@dataclass(frozen=True, eq=False)
class Peer:
    """Another rank of a loopback in one call: what it hands in, and what its experts are (a bound layer, usually)."""

    hidden_states: Tensor
    routing: Routing
    experts: Callable[[Batch], Tensor]


@final
@dataclass(frozen=True, eq=False)
class LoopbackRank(Dispatcher[tuple[tuple[Batch, LoopbackReceipt], ...]]):
    """Rank `rank` of `fleet` as the dispatcher of an `MoE`; `peers` are the other ranks, in order.

    It plays the peers whole, so their experts run when this rank combines.
    """

    fleet: Loopback
    rank: int
    peers: tuple[Peer, ...]

    def __post_init__(self) -> None:
        instance("LoopbackRank", "fleet", self.fleet, Loopback, DispatchError, example="Loopback(...)")
        self.fleet.experts(self.rank)
        example = "(Peer(hidden_states, routing, experts), ...)"
        instance("LoopbackRank", "peers", self.peers, tuple, DispatchError, example=example)
        for peer in self.peers:
            instance("LoopbackRank", "peers", peer, Peer, DispatchError, example=example)
        if len(self.peers) != self.fleet.num_ranks - 1:
            raise DispatchError(
                f"{len(self.peers)} peers for {self.fleet.num_ranks} ranks: give every rank but its own"
            )

    @property
    @override
    def layout(self) -> Layout:
        return self.fleet.layout

    @property
    @override
    def synchronises(self) -> bool:
        return True

    @override
    def num_experts(self, num_local: int) -> int:
        """Raises DispatchError if the rank does not hold `num_local` experts."""
        held = len(self.fleet.experts(self.rank))
        if num_local != held:
            raise DispatchError(f"rank {self.rank} holds {held} experts, but the problem is for {num_local}")
        return self.fleet.num_experts

    @override
    def dispatch(
        self, hidden_states: Tensor, routing: Routing
    ) -> tuple[Batch, tuple[tuple[Batch, LoopbackReceipt], ...]]:
        calls: list[Call] = [(peer.hidden_states, peer.routing) for peer in self.peers]
        calls.insert(self.rank, (hidden_states, routing))
        delivered = tuple(self.fleet.dispatch_all(calls))
        return delivered[self.rank][0], delivered

    @override
    def combine(self, rows: Tensor, receipt: tuple[tuple[Batch, LoopbackReceipt], ...]) -> Tensor:
        others = [batch for rank, (batch, _) in enumerate(receipt) if rank != self.rank]
        made = [peer.experts(batch) for peer, batch in zip(self.peers, others, strict=True)]
        made.insert(self.rank, rows)
        return self.fleet.combine_all(made, [own for _, own in receipt])[self.rank]
