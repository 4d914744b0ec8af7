"""AllGather: every rank gets every token, and computes what falls to its experts. Simple; traffic grows with N."""

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
class AllGather(ExactRanks):
    """Standard batches of all ranks' tokens, rank after rank; slots of other ranks' experts are -1.

    Ranks with fewer tokens than others pad what they send, so that one all-gather moves it; the padding is cut off.
    """

    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[StandardBatch, SumReceipt]:
        """Raises BatchError for tokens that are none, DispatchError on every rank for ranks that do not fit."""
        ranks, experts, me = self.ranks, self.placement.experts, self.ranks.rank
        tokens = handed_in(hidden_states, routing, ranks, owner=self.name, wire=self.wire)
        number = len(tokens.rows)
        counts = torch.full((ranks.size,), number, dtype=torch.int64, device=ranks.device)
        announced = announce(ranks, tokens, counts, owner=self.name, identity=self.identity, wire=self.wire)
        lengths = announced.got(me)
        rank, local = self.tables.local(routing.topk_ids, me)
        # Local ids with room for those of any rank: rank r finds its own by taking off r times the room.
        room = max(map(len, experts))
        ids = torch.where(rank >= 0, rank * room + local, -1)
        packed = announced.wire.pack(announced.wire.parts(hidden_states), ids, routing.topk_weights)
        padded = torch.cat([packed, packed.new_zeros(max(lengths) - number, packed.shape[1])])
        gathered = ranks.all_gather(padded, f"{self.name}.dispatch, the tokens")
        every = announced.wire.unpack(torch.cat([part[:n] for part, n in zip(gathered, lengths, strict=True)]))
        found = every.routing.topk_ids - self.share * room
        own = torch.where((found >= 0) & (found < len(experts[self.share])), found, -1)
        token = torch.arange(number, device=ranks.device).repeat(ranks.size)
        receipt = SumReceipt((number,) * ranks.size, lengths, token, number, hidden_states.shape[1], every.rows.dtype)
        return StandardBatch(every.rows, Routing(own, every.routing.topk_weights)), receipt
