"""PaddedRanks: rows in buffers of fixed size, so that the host waits for nothing and a CUDA graph can hold the call.

A rank sends every rank, itself included, C rows: a token once, with the ids and weights of all its slots there, in the
order of tokens; what is left over carries the id -1. Ids say which rows are real, so no counts travel. What arrived is
interleaved, row c of rank r at c * N + r: ranks that send alike leave no padding in the middle, and `num_valid` says
where the padding begins. Dimensions: N ranks, T tokens, K slots, H hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.checks import whole_number
from moesaic.dispatch.announcement import checked_tokens, refuse_gradients
from moesaic.dispatch.arrangement import Arrangement, RowPlaces
from moesaic.dispatch.over_ranks import OverRanks
from moesaic.dispatch.wire import Wire
from moesaic.errors import BatchError, DispatchError
from moesaic.layouts import Layout


@final
@dataclass(frozen=True, eq=False)
class PaddedReceipt:
    """What `combine` needs: which ranks each token needs, its row among those sent there, and which rows had no room.

    `shape`, `dtype`: of the experts' rows. `places`: where the arrangement put the pairs.
    """

    row: Int[Tensor, "N T"]
    sent: Bool[Tensor, "N T"]
    lost: Bool[Tensor, " T"]
    places: RowPlaces | None
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class PaddedRanks(OverRanks[PaddedReceipt]):
    """At most `max_tokens` tokens a rank. `max_rows` C: how many of them travel to each rank, all of them unless given.

    A token that finds no room, with a smaller C, gets NaN for its output: the host would have to wait to say more.
    """

    max_tokens: int
    max_rows: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_tokens", whole_number(self.name, "max_tokens", self.max_tokens, DispatchError))
        if self.max_rows is not None:
            object.__setattr__(self, "max_rows", whole_number(self.name, "max_rows", self.max_rows, DispatchError))

    @property
    @abstractmethod
    def arrangement(self) -> Arrangement:
        """How the rows are laid for the experts."""

    @property
    @override
    def layout(self) -> Layout:
        return self.arrangement.layout

    @property
    @override
    def synchronises(self) -> bool:
        """False."""
        return False

    @property
    def rows_to_each(self) -> int:
        """C."""
        return self.max_tokens if self.max_rows is None else min(self.max_rows, self.max_tokens)

    @override
    def told(self) -> dict[str, str]:
        return {"rows to each rank": str(self.rows_to_each), "arrangement": repr(self.arrangement)}

    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[Batch, PaddedReceipt]:
        """Raises BatchError or DispatchError for tokens that are none or too many, on this rank alone."""
        tokens = checked_tokens(hidden_states, routing, self.ranks, self.wire)
        number = len(tokens.rows)
        self.arrangement.check(tokens.rows.dtype)
        if number > self.max_tokens:
            raise DispatchError(
                f"{self.name}: rank {self.ranks.rank} hands in {number} tokens, but max_tokens is {self.max_tokens}: "
                "raise it on all ranks, or hand in fewer at a time (the other ranks wait for this one)"
            )
        shares = torch.arange(self.ranks.size, device=self.ranks.device) // self.shards
        rank, local = self.tables.local(tokens.routing.topk_ids, self.ranks.rank)
        needed = (rank == shares[:, None, None]).any(-1)
        row = needed.cumsum(1) - 1
        sent = needed & (row < self.rows_to_each)
        wire, packed = self._packed(tokens, torch.where(rank == shares[:, None, None], local, -1), row, sent)
        arrived = self._arrived(wire, self.ranks.exchange(packed, f"{self.name}.dispatch, the tokens"))
        batch, places = self.arrangement.arrange(arrived, len(self.placement.experts[self.share]))
        lost = (needed & ~sent).any(0)
        receipt = PaddedReceipt(row, sent, lost, places, tuple(batch.rows.shape), batch.rows.dtype)
        return batch, receipt

    def _packed(self, tokens: StandardBatch, ids: Tensor, row: Tensor, sent: Tensor) -> tuple[Wire, Tensor]:
        """`[N, C, bytes]`: what goes to each rank; `ids [N, T, K]` are the local ones there."""
        size, room, (number, top_k) = self.ranks.size, self.rows_to_each, tokens.routing.topk_ids.shape
        rows, weights = tokens.rows, tokens.routing.topk_weights
        wire = Wire(rows.shape[1], top_k, rows.dtype, weights.dtype, self.wire)
        if number == 0:  # something to copy into rows that nobody reads
            rows, weights, ids = (
                rows.new_zeros(1, rows.shape[1]),
                weights.new_zeros(1, top_k),
                ids.new_full((size, 1, top_k), -1),
            )
        every = torch.arange(number, device=rows.device).expand(size, -1)
        token = every.new_zeros(size, room + 1)  # the last one of each rank takes what is not sent
        token = token.scatter_(1, row.where(sent, room), every)[:, :-1]
        live = torch.arange(room, device=rows.device) < sent.sum(1, keepdim=True)
        own = ids.gather(1, token.unsqueeze(-1).expand(-1, -1, top_k)).where(live.unsqueeze(-1), -1)
        flat = token.flatten()
        parts = [part[flat] for part in wire.parts(rows)]  # a token is rounded once, however many ranks need it
        return wire, wire.pack(parts, own.flatten(0, 1), weights[flat]).view(size, room, -1)

    def _arrived(self, wire: Wire, received: Tensor) -> PaddedStandardBatch:
        found = wire.unpack(received.flatten(0, 1))
        parts = (found.rows, found.routing.topk_ids, found.routing.topk_weights)
        rows, ids, weights = (part.unflatten(0, received.shape[:2]).transpose(0, 1).flatten(0, 1) for part in parts)
        ends = torch.arange(1, len(ids) + 1, dtype=torch.int32, device=ids.device)
        num_valid = ends.where((ids >= 0).any(1), 0).amax()
        return PaddedStandardBatch(rows, Routing(ids, weights), num_valid)

    @override
    def combine(self, rows: Tensor, receipt: PaddedReceipt) -> Tensor:
        """Raises BatchError for rows of another batch, GradientError for ones that require it, on this rank alone."""
        refuse_gradients(rows)
        if (tuple(rows.shape), rows.dtype) != (receipt.shape, receipt.dtype):
            raise BatchError(
                f"the rows are {rows.dtype} of shape {tuple(rows.shape)}, but the receipt is for {receipt.dtype} of "
                f"shape {receipt.shape}: give the receipt of the same dispatch, with the rows of its batch"
            )
        sums = self.arrangement.partial_sums(rows, receipt.places)
        home = sums.view(self.rows_to_each, self.ranks.size, -1).transpose(0, 1).contiguous()
        back = self.ranks.exchange(home.view(torch.uint8), f"{self.name}.combine, the partial sums").view(sums.dtype)
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        output = torch.zeros(receipt.row.shape[1], rows.shape[-1], dtype=wide, device=rows.device)
        for values, row, sent in zip(back, receipt.row, receipt.sent, strict=True):
            output += values[row.clamp(0, len(values) - 1)].to(wide).where(sent.unsqueeze(1), 0)
        return output.masked_fill_(receipt.lost.unsqueeze(1), torch.nan).to(rows.dtype)
