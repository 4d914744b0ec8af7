"""AllToAll: a token travels once to each rank that has one of its experts, however many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing, StandardBatch
from moesaic.dispatch.announcement import announce, handed_in
from moesaic.dispatch.exact_ranks import ExactRanks
from moesaic.dispatch.partial_sums import SumReceipt


@final
@dataclass(frozen=True)
class AllToAll(ExactRanks):
    """Standard batches of the tokens that need this rank, in the order of ranks and tokens; other slots are -1.

    Buffers are exact: the host waits once for the number of rows, and nothing else is read on it.
    """

    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[StandardBatch, SumReceipt]:
        """Raises BatchError for tokens that are none, DispatchError on every rank for ranks that do not fit."""
        ranks, me = self.ranks, self.ranks.rank
        tokens = handed_in(hidden_states, routing, ranks, owner=self.name, wire=self.wire)
        rank, local = self.tables.local(routing.topk_ids, me)
        shares = torch.arange(ranks.size, device=ranks.device) // self.shards
        needed = (rank == shares[:, None, None]).any(-1)  # [N, T]
        announced = announce(ranks, tokens, needed.sum(1), owner=self.name, identity=self.identity, wire=self.wire)
        sent, got = announced.sent(me), announced.got(me)
        # One pair for each rank that a token needs, in the order of ranks; their number is known by now.
        destination, token = torch.nonzero_static(needed, size=sum(sent)).unbind(1)
        ids = torch.where(rank[token] == shares[destination, None], local[token], -1)
        parts = [part[token] for part in announced.wire.parts(hidden_states)]
        packed = announced.wire.pack(parts, ids, routing.topk_weights[token])
        arrived = ranks.all_to_all(packed, sent, got, f"{self.name}.dispatch, the tokens")
        receipt = SumReceipt(sent, got, token, len(hidden_states), hidden_states.shape[1], hidden_states.dtype)
        return announced.wire.unpack(arrived), receipt
