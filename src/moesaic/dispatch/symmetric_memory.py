"""SymmetricMemory: ranks of one host write rows straight into each other's memory, one launch each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, PaddedStandardBatch, Routing
from moesaic.checks import instance
from moesaic.dispatch.announcement import checked_tokens, refuse_gradients
from moesaic.dispatch.arrangement import Arrangement, AsArrived, RowPlaces
from moesaic.dispatch.exchanges import SumExchange, TokenExchange, row_bytes
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.over_ranks import OverRanks
from moesaic.errors import BatchError, DispatchError
from moesaic.kernels.peer_window import PeerWindow
from moesaic.layouts import Layout
from moesaic.quant import Plain

WIRE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What hidden states may be; sums are made in float32."""

CONVERTS = (8, 9)
"""The compute capability from which a GPU converts to E4M3."""


@final
@dataclass(frozen=True, eq=False)
class SymmetricReceipt:
    """What `combine` needs: the exchange of the tokens, where the arrangement put the pairs, the rows' shape."""

    exchange: TokenExchange
    places: RowPlaces | None
    shape: tuple[int, ...]


@final
@dataclass(frozen=True)
class SymmetricMemory(OverRanks[SymmetricReceipt]):
    """Through `window`, which `open_window` makes for all ranks; `arrangement`: how the experts get what arrived.

    Row t * N + r of PaddedStandard is token t of rank r, so padding lies behind N times the longest rank's tokens.
    Batches have memory of their own, and the receipt holds what `combine` needs. All calls through one window are on
    one stream, in one order on all ranks; a CUDA graph may hold any number of them.
    """

    window: PeerWindow
    arrangement: Arrangement = AsArrived()

    def __post_init__(self) -> None:
        super().__post_init__()
        example = "open_window(ranks, max_tokens=64, hidden_size=2048, top_k=8)"
        instance(self.name, "window", self.window, PeerWindow, DispatchError, example=example)
        instance(self.name, "arrangement", self.arrangement, Arrangement, DispatchError, example="AsArrived()")
        window = self.window
        if (window.rank, window.num_ranks, window.memory.device) != (*self._own, self.ranks.device):
            raise DispatchError(f"{window!r} is not one of {self.ranks!r}: open one with these ranks")
        device = torch.device(self.ranks.device)
        if self.wire != Plain() and device.type == "cuda" and torch.cuda.get_device_capability(device) < CONVERTS:
            raise DispatchError(
                f"{self.name}: {torch.cuda.get_device_name(device)} has no instructions for {self.wire!r}, which came "
                "with sm_89: use wire=Plain(), or PaddedAllToAll"
            )

    @property
    def _own(self) -> tuple[int, int]:
        return self.ranks.rank, self.ranks.size

    @property
    @override
    def layout(self) -> Layout:
        return self.arrangement.layout

    @property
    @override
    def synchronises(self) -> bool:
        """False."""
        return False

    @override
    def told(self) -> dict[str, str]:
        window = self.window
        size = f"{window.max_tokens} tokens of {window.row_bytes} bytes"
        return {"window": size, "arrangement": repr(self.arrangement)}

    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[Batch, SymmetricReceipt]:
        """Raises BatchError or DispatchError for tokens that are none or do not fit, on this rank alone."""
        exchange = self.token_exchange(hidden_states, routing)
        exchange.run()
        return self.arranged(exchange)

    @override
    def dispatch_counted(
        self, hidden_states: Tensor, routing: Routing, recorder: LoadRecorder, layer: int
    ) -> tuple[Batch, SymmetricReceipt]:
        """In the launch that sends the tokens, whose programs read every id once. Raises what `dispatch` raises."""
        if (recorder.num_experts, recorder.device) != (self.placement.num_experts, self.ranks.device):
            return super().dispatch_counted(hidden_states, routing, recorder, layer)  # the kernel would add beside it
        exchange = self.token_exchange(hidden_states, routing, recorder.bins(layer))
        exchange.run()
        return self.arranged(exchange)

    @override
    def combine(self, rows: Tensor, receipt: SymmetricReceipt) -> Tensor:
        """Raises BatchError for rows of another batch, GradientError for ones that require it, on this rank alone."""
        refuse_gradients(rows)
        exchange = self.sum_exchange(rows, receipt)
        exchange.run()
        return exchange.output

    def token_exchange(self, hidden_states: Tensor, routing: Routing, bins: Tensor | None = None) -> TokenExchange:
        """What `dispatch` launches, or, with `bins` of a recorder, `dispatch_counted`."""
        tokens = checked_tokens(hidden_states, routing, self.ranks, self.wire)
        rows, weights, top_k = tokens.rows, tokens.routing.topk_weights, tokens.routing.topk_ids.shape[1]
        if rows.dtype not in WIRE_DTYPES or weights.dtype != torch.float32:
            raise DispatchError(
                f"{self.name}: hidden_states is {rows.dtype} and topk_weights {weights.dtype}, but it needs one of "
                f"{', '.join(map(str, WIRE_DTYPES))}, and torch.float32"
            )
        needed = row_bytes(rows.shape[1], top_k, rows.dtype, self.arrangement)
        if len(rows) > self.window.max_tokens or needed > self.window.row_bytes:
            raise DispatchError(
                f"{self.name}: rank {self.ranks.rank} hands in {len(rows)} tokens of {needed} bytes, but the window "
                f"takes {self.window.max_tokens} of {self.window.row_bytes}: open a larger one on all ranks, or hand "
                "in fewer at a time (the other ranks wait for this one)"
            )
        coded = self.wire != Plain()
        return TokenExchange.of(tokens, self.tables, self.window, shards=self.shards, coded=coded, bins=bins)

    def arranged(self, exchange: TokenExchange) -> tuple[Batch, SymmetricReceipt]:
        """Batch and receipt, once the exchange has run."""
        came = exchange.arrivals
        arrived = PaddedStandardBatch(came.rows, Routing(came.ids, came.weights), came.num_valid)
        batch, places = self.arrangement.arrange(arrived, len(self.placement.experts[self.share]))
        return batch, SymmetricReceipt(exchange, places, tuple(batch.rows.shape))

    def sum_exchange(self, rows: Tensor, receipt: SymmetricReceipt) -> SumExchange:
        """What `combine` launches."""
        dtype = receipt.exchange.arrivals.rows.dtype
        if (tuple(rows.shape), rows.dtype) != (receipt.shape, dtype):
            raise BatchError(
                f"the rows are {rows.dtype} of shape {tuple(rows.shape)}, but the receipt is for {dtype} of shape "
                f"{receipt.shape}: give the receipt of the same dispatch, with the rows of its batch"
            )
        return SumExchange.of(self.arrangement.partial_sums(rows, receipt.places), receipt.exchange)
