"""TokenExchange and SumExchange: the two exchanges through a window, with the memory that each fills.

`run` launches one; where one process plays all ranks, in Triton's interpreter, it launches the sending half of all of
them and then the receiving half. Dimensions: N ranks, M tokens a rank at most, T tokens, K slots, H hidden size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from moesaic.batches import StandardBatch
from moesaic.dispatch.arrangement import Arrangement, AsArrived
from moesaic.dispatch.slot_tables import SlotTables
from moesaic.kernels.peer_window import ALIGNMENT, PeerWindow, aligned, row_starts

if TYPE_CHECKING:
    from moesaic.kernels.exchange_arrivals import Arrivals


def row_bytes(hidden_size: int, top_k: int, dtype: torch.dtype, arrangement: Arrangement) -> int:
    """What one token takes in a window: with its routing on the way there, as a sum on the way back.

    Whether it goes as it is or as FP8: its sum comes back as long as it is, so a window for FP8 would be no smaller.
    """
    there = (row_starts(hidden_size, top_k, dtype.itemsize, coded=coded)[-1] for coded in (False, True))
    back = dtype if isinstance(arrangement, AsArrived) else torch.float32
    return max(*there, aligned(hidden_size * back.itemsize))


@final
@dataclass(frozen=True, eq=False)
class TokenExchange:
    """Tokens of this rank, on their way to the ranks that need them; as FP8 if `coded`.

    Their ids are counted in `bins` int64 `[E + 2]` of a recorder on their device, if there are some.
    """

    tokens: StandardBatch
    tables: SlotTables
    window: PeerWindow
    arrivals: Arrivals
    shards: int
    coded: bool
    bins: Tensor | None

    @classmethod
    def of(
        cls,
        tokens: StandardBatch,
        tables: SlotTables,
        window: PeerWindow,
        *,
        shards: int,
        coded: bool,
        bins: Tensor | None = None,
    ) -> TokenExchange:
        """With fresh memory for what arrives."""
        from moesaic.kernels.exchange_arrivals import Arrivals  # noqa: PLC0415

        rows, ids = tokens.rows, tokens.routing.topk_ids
        (number, top_k), many = ids.shape, window.max_tokens * window.num_ranks
        unit = ALIGNMENT // rows.element_size()
        wide = -(-rows.shape[1] // unit) * unit  # each row begins at a multiple of 16 bytes
        arrivals = Arrivals(
            rows.new_empty(many, wide)[:, : rows.shape[1]],
            ids.new_empty(many, top_k),
            rows.new_empty(many, top_k, dtype=torch.float32),
            ids.new_empty(number, top_k),
            ids.new_empty(window.num_ranks),
            ids.new_empty(()),
        )
        return cls(tokens, tables, window, arrivals, shards, coded, bins)

    def run(self, *, send: bool = True, receive: bool = True) -> None:
        """Launch it, or one half."""
        from moesaic.kernels.exchange_tokens import exchange_tokens  # noqa: PLC0415

        rows, routing, tables = self.tokens.rows, self.tokens.routing, self.tables
        with on_device(rows):
            exchange_tokens(
                rows if rows.stride(1) == 1 else rows.contiguous(),
                routing.topk_ids.contiguous(),
                routing.topk_weights.contiguous(),
                (tables.slots_of, tables.replicas, tables.ranks, tables.local_ids),
                self.window,
                self.arrivals,
                shards=self.shards,
                coded=self.coded,
                bins=self.bins,
                phases=(send, receive),
            )


@final
@dataclass(frozen=True, eq=False)
class SumExchange:
    """Sums of this rank's experts, on their way to the ranks whose tokens they are of."""

    sums: Tensor
    exchange: TokenExchange
    output: Tensor

    @classmethod
    def of(cls, sums: Tensor, exchange: TokenExchange) -> SumExchange:
        """With fresh memory for the output, in the dtype of the tokens."""
        rows = exchange.tokens.rows
        output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        return cls(sums if sums.stride(1) == 1 else sums.contiguous(), exchange, output)

    def run(self, *, send: bool = True, receive: bool = True) -> None:
        """Launch it, or one half."""
        from moesaic.kernels.exchange_sums import exchange_sums  # noqa: PLC0415

        own = self.exchange
        with on_device(self.sums):
            phases = (send, receive)
            exchange_sums(self.sums, own.arrivals, own.window, self.output, shards=own.shards, phases=phases)


def on_device(rows: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whatever its arguments lie on."""
    return torch.cuda.device(rows.device) if rows.is_cuda else nullcontext()
