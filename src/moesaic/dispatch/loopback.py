"""Loopback: one process plays every rank of a fleet and hands out what real dispatchers hand out.

So the layouts, paddings and ids that a cluster would produce can be had on a laptop, with undefined memory that holds
a chosen poison. It is for tests and for trying a fleet's shape; it moves nothing between devices and reads values on
the host. `loopback_rank.py` makes one of its ranks a dispatcher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, StandardBatch
from moesaic.checks import instance, whole_number
from moesaic.dispatch.fleet import Call, Fleet
from moesaic.dispatch.transport import Arrived, Memory, Sent, Transport
from moesaic.errors import BatchError, DispatchError
from moesaic.layouts import Layout


@final
@dataclass(frozen=True, eq=False)
class LoopbackReceipt:
    """What a rank needs to send rows back: how many tokens each rank handed in, and where whose rows lie."""

    tokens: tuple[int, ...]
    arrived: Arrived
    shape: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Loopback(Fleet[LoopbackReceipt]):
    """`num_ranks` ranks in one process, with rows that arrive as `transport` says.

    `hidden_multiple`: rows travel in memory this many columns wide, or a multiple, and are cut back, so they have a
    stride. `poison`: what undefined memory holds.
    """

    transport: Transport
    hidden_multiple: int = 1
    poison: float = math.nan

    def __post_init__(self) -> None:
        instance("Loopback", "transport", self.transport, Transport, DispatchError, example="Gathered()")
        super().__post_init__()
        multiple = whole_number("Loopback", "hidden_multiple", self.hidden_multiple, DispatchError)
        object.__setattr__(self, "hidden_multiple", multiple)

    @property
    @override
    def layout(self) -> Layout:
        return self.transport.layout

    @property
    @override
    def played(self) -> tuple[int, ...]:
        return tuple(range(self.num_ranks))

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        """Raises DispatchError if calls and ranks differ in number, BatchError if the calls do not fit together."""
        self.checked(calls)
        sent, memory = self._sent(calls), Memory(self.poison, self.hidden_multiple)
        tokens = tuple(len(hidden_states) for hidden_states, _ in calls)
        delivered = [self.transport.deliver(sent, self.experts(rank), memory) for rank in self.played]
        return [(batch, LoopbackReceipt(tokens, arrived, tuple(batch.rows.shape))) for batch, arrived in delivered]

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        """Every token's contributions, weighted where they are not, summed in float32 one after another, rounded once.

        The order is that of slots, or that of ranks where a rank has summed already, and the same in every run.
        Raises DispatchError if rows, receipts and ranks differ in number, BatchError for rows of another batch.
        """
        if not len(rows) == len(receipts) == self.num_ranks:
            raise DispatchError(f"{len(rows)} rows and {len(receipts)} receipts for {self.num_ranks} ranks")
        for rank, (given, receipt) in enumerate(zip(rows, receipts, strict=True)):
            if given.shape != receipt.shape or receipt.tokens != receipts[0].tokens:
                raise BatchError(
                    f"the rows of rank {rank} are {tuple(given.shape)}, but its receipt is for {receipt.shape}"
                    f" and {receipt.tokens} tokens: give the receipts of one dispatch, with the rows of their batches"
                )
        wide = torch.float64 if rows[0].dtype == torch.float64 else torch.float32
        hidden, total = rows[0].shape[-1], sum(receipts[0].tokens)
        turns = [_contributions(given, receipt, wide) for given, receipt in zip(rows, receipts, strict=True)]
        value, token, turn = (torch.cat(parts) for parts in zip(*turns, strict=True))
        output = torch.zeros(total, hidden, dtype=wide, device=value.device)
        for number in turn.unique().tolist():
            now = turn == number
            output[token[now]] += value[now]  # at most one contribution a token and turn, so no index comes twice
        return list(output.to(rows[0].dtype).split(receipts[0].tokens))

    def _sent(self, calls: Sequence[Call]) -> Sent:
        batches = [StandardBatch(*call) for call in calls]
        first, most = batches[0], self.transport.max_tokens_per_rank
        for rank, batch in enumerate(batches):
            for name, tensor, other in (
                ("hidden_states", batch.hidden_states, first.hidden_states),
                ("topk_ids", batch.routing.topk_ids, first.routing.topk_ids),
                ("topk_weights", batch.routing.topk_weights, first.routing.topk_weights),
            ):
                if (tensor.dtype, tensor.shape[1], tensor.device) != (other.dtype, other.shape[1], other.device):
                    raise BatchError(
                        f"{name} of rank {rank} is {tensor.dtype} with {tensor.shape[1]} columns on {tensor.device}, "
                        f"but rank 0's is {other.dtype} with {other.shape[1]} on {other.device}; all ranks need one"
                    )
            if most is not None and len(batch.rows) > most:
                raise BatchError(
                    f"rank {rank} hands in {len(batch.rows)} tokens, but {self.transport!r} takes at most {most} a rank"
                )
        lengths = torch.tensor([len(batch.rows) for batch in batches])
        rank = torch.repeat_interleave(torch.arange(len(batches)), lengths).to(first.hidden_states.device)
        return Sent(
            torch.cat([batch.hidden_states for batch in batches]),
            torch.cat([batch.routing.topk_ids for batch in batches]).long(),
            torch.cat([batch.routing.topk_weights for batch in batches]),
            rank,
            self.num_ranks,
            self.weight_on_input,
        )


def _contributions(rows: Tensor, receipt: LoopbackReceipt, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    arrived = receipt.arrived
    value = rows.reshape(-1, rows.shape[-1])[arrived.place].to(wide)
    if arrived.weight is not None:
        value = value * arrived.weight.to(wide).unsqueeze(-1)
    return value, arrived.token, arrived.turn
