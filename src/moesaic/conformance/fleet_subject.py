"""FleetSubject: a fleet under test, with the few moves that its checks are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from moesaic.activations import SwiGLU
from moesaic.backends.strict import check
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, TokenBatch
from moesaic.conformance.traffic import Traffic
from moesaic.dispatch.fleet import Call, Fleet
from moesaic.errors import BatchError, Nonconformance
from moesaic.problem import Problem

Experts: TypeAlias = Callable[[int, Batch], Tensor]
"""What the experts of a rank make of its batch."""


@final
class FleetSubject:
    """What a dispatch check is given beside its traffic."""

    def __init__(self, fleet: Fleet[Any], device: torch.device) -> None:
        self.fleet = fleet
        self.device = device

    def calls(self, traffic: Traffic) -> list[Call]:
        """What every rank hands in; fresh tensors each time."""
        return traffic.calls(self.fleet, self.device)

    def problem(self, traffic: Traffic, rank: int, *, weight_on_input: bool = False) -> Problem:
        """The problem of the experts of `rank`. Its intermediate size is small: the dispatcher never sees it."""
        return Problem(
            num_experts=len(self.fleet.experts(rank)),
            top_k=traffic.top_k,
            hidden_size=traffic.hidden_size,
            intermediate_size=32,
            activation=SwiGLU(),
            dtype=traffic.dtype,
            layout=self.fleet.layout,
            weight_on_input=weight_on_input and self.fleet.layout.has_routing,
            duplicate_ids=traffic.duplicates,
        )

    def dispatch(self, traffic: Traffic, calls: Sequence[Call]) -> list[tuple[Batch, Any]]:
        """Batch and receipt of every rank played. Raises Nonconformance if a batch breaks its contract."""
        delivered = self.fleet.dispatch_all(calls)
        if len(delivered) != len(self.fleet.played):
            raise Nonconformance("batches dispatched", f"{len(self.fleet.played)}", f"{len(delivered)}")
        for rank, (batch, _) in zip(self.fleet.played, delivered, strict=True):
            hidden = batch.rows.shape[-1]
            if (hidden, batch.rows.dtype) != (traffic.hidden_size, traffic.dtype):
                wanted = f"{traffic.hidden_size} columns of {traffic.dtype}"
                raise Nonconformance(f"the rows of rank {rank}", wanted, f"{hidden} of {batch.rows.dtype}")
            try:
                check(batch, self.problem(traffic, rank))
            except BatchError as fault:
                wanted = f"what {self.fleet.layout!r} promises"
                raise Nonconformance(f"the batch of rank {rank}", wanted, str(fault)) from fault
        return delivered

    def combine(self, calls: Sequence[Call], rows: Sequence[Tensor], receipts: Sequence[Any]) -> list[Tensor]:
        """The outputs of the ranks played. Raises Nonconformance for another shape or dtype than the tokens have."""
        outputs = self.fleet.combine_all(rows, receipts)
        if len(outputs) != len(self.fleet.played):
            raise Nonconformance("outputs combined", f"{len(self.fleet.played)}", f"{len(outputs)}")
        for rank, output in zip(self.fleet.played, outputs, strict=True):
            tokens = calls[rank][0]
            wanted, got = (f"{t.dtype} of shape {tuple(t.shape)} on {t.device}" for t in (tokens, output))
            if wanted != got:
                raise Nonconformance(f"the output of rank {rank}", wanted, got)
        return outputs

    def outputs(self, traffic: Traffic, experts: Experts, calls: Sequence[Call] | None = None) -> list[Tensor]:
        """Dispatch, experts and combine."""
        given = self.calls(traffic) if calls is None else calls
        delivered = self.dispatch(traffic, given)
        return self.combine(given, self.rows(experts, delivered), [receipt for _, receipt in delivered])

    def rows(self, experts: Experts, delivered: Sequence[tuple[Batch, Any]]) -> list[Tensor]:
        """What the experts of the ranks played make of their batches."""
        return [experts(rank, batch) for rank, (batch, _) in zip(self.fleet.played, delivered, strict=True)]

    def marked(self, rank: int, batch: Batch) -> Tensor:
        """Experts that are told apart: expert e of the model returns (e + 1) * x * |x| of the row, elementwise.

        Exact in float32 for whole numbers. A weight on the input counts squared, so the side on which it is shows.
        Undefined rows come back undefined, as a kernel may leave them.
        """
        return self._marked(rank, batch, on_input=False)

    def marked_on_input(self, rank: int, batch: Batch) -> Tensor:
        """As `marked`, with the router weight on the input, where the rows carry their routing."""
        return self._marked(rank, batch, on_input=True)

    def _marked(self, rank: int, batch: Batch, *, on_input: bool) -> Tensor:
        owned = self.fleet.experts(rank)
        factors = torch.arange(owned.start + 1, owned.stop + 1, device=self.device, dtype=torch.float32)
        rows = batch.rows.float()
        squares = rows * rows.abs()
        if isinstance(batch, GroupedBatch):
            ends = (batch.offsets + batch.counts).long()
            expert = torch.searchsorted(ends, torch.arange(len(rows), device=self.device), right=True)
            return (squares * factors[expert.clamp(max=len(factors) - 1)].unsqueeze(-1)).to(batch.rows.dtype)
        if isinstance(batch, BatchedBatch):
            return (squares * factors[:, None, None]).to(batch.rows.dtype)
        ids, weights = batch.routing.topk_ids.long(), batch.routing.topk_weights
        active = active_slots(batch, len(factors))
        share = weights * weights.abs() if on_input else weights
        each = torch.where(active, share, 0.0) * factors[torch.where(active, ids, 0)]
        if not isinstance(batch, PaddedStandardBatch):  # a row without an active slot is zero, whatever it holds
            squares = torch.where(active.any(1, keepdim=True), squares, 0.0)
        return (squares * each.sum(1, keepdim=True)).to(batch.rows.dtype)


def active_slots(batch: TokenBatch, num_experts: int) -> Tensor:
    """Bool `[T, K]`: the slots that name a local expert."""
    ids = batch.routing.topk_ids
    return (ids >= 0) & (ids < num_experts)


def live_rows(batch: Batch, num_experts: int) -> Tensor:
    """Bool over the rows of the batch: those whose output is defined."""
    places = torch.arange(batch.rows.shape[-2], device=batch.rows.device)
    match batch:
        case GroupedBatch():
            start, stop = batch.offsets.unsqueeze(1), (batch.offsets + batch.counts).unsqueeze(1)
            return ((places >= start) & (places < stop)).any(0)
        case BatchedBatch():
            return places < batch.counts.unsqueeze(1)
        case PaddedStandardBatch():
            return active_slots(batch, num_experts).any(1)
        case _:
            return torch.ones_like(places, dtype=torch.bool)
