"""Transports of (token, slot) rows without their routing: unweighted rows travel back and are weighted there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.checks import whole_number
from moesaic.dispatch.transport import Arrived, Memory, Sent, Transport, check_max_tokens, within
from moesaic.errors import BatchError, DispatchError
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout


@final
@dataclass(frozen=True)
class Expanded(Transport):
    """DeepEP V2, prefill: one row per (token, slot), grouped by expert, each group rounded up to `alignment` rows.

    GroupedContiguous. Without `max_tokens` the host knew the counts and the buffer is exact; with it the buffer is the
    worst case of `N * max_tokens * min(K, L) + (alignment - 1) * L` rows, rounded up, and ends undefined.
    """

    alignment: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alignment", whole_number("Expanded", "alignment", self.alignment, DispatchError))
        if self.max_tokens is not None:
            check_max_tokens(self, self.max_tokens)

    @property
    @override
    def layout(self) -> Layout:
        return GroupedContiguous(self.alignment)

    @property
    @override
    def max_tokens_per_rank(self) -> int | None:
        return self.max_tokens

    @override
    def deliver(self, sent: Sent, experts: range, memory: Memory) -> tuple[Batch, Arrived]:
        token, slot, expert = _by_expert(sent, experts)
        counts = torch.bincount(expert, minlength=len(experts))
        taken = -(-counts // self.alignment) * self.alignment
        offsets = taken.cumsum(0) - taken
        size = int(taken.sum())
        if self.max_tokens is not None:
            pairs = sent.num_ranks * self.max_tokens * min(sent.ids.shape[1], len(experts))
            room = -(-(pairs + (self.alignment - 1) * len(experts)) // self.alignment) * self.alignment
            if size > room:
                raise BatchError(
                    f"{size} rows arrive in a buffer of {room}, which is made for distinct experts in a token: "
                    "deduplicate the ids, or leave max_tokens out"
                )
            size = room
        rows = memory.rows(sent.hidden_states, size)
        place = offsets[expert] + within(expert)
        rows[place] = _pairs(sent, token, slot)
        batch = GroupedBatch(rows, offsets.int(), counts.int(), self.alignment)
        return batch, _unweighted(sent, place, token, slot)


@final
@dataclass(frozen=True)
class Slabs(Transport):
    """DeepEP low latency: one row per (token, slot) in a slab of `N * max_tokens` rows for each expert.

    BatchedExperts; the rest of a slab is undefined.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        check_max_tokens(self, self.max_tokens)

    @property
    @override
    def layout(self) -> Layout:
        return BatchedExperts()

    @property
    @override
    def max_tokens_per_rank(self) -> int | None:
        return self.max_tokens

    @override
    def deliver(self, sent: Sent, experts: range, memory: Memory) -> tuple[Batch, Arrived]:
        token, slot, expert = _by_expert(sent, experts)
        counts = torch.bincount(expert, minlength=len(experts))
        capacity = sent.num_ranks * self.max_tokens
        if len(expert) and int(counts.max()) > capacity:
            raise BatchError(
                f"expert {experts[int(counts.argmax())]} gets {int(counts.max())} rows, but its slab holds {capacity}, "
                "which is enough for distinct experts in a token: deduplicate the ids, or raise max_tokens"
            )
        rows = memory.rows(sent.hidden_states, len(experts), capacity)
        inside = within(expert)
        rows[expert, inside] = _pairs(sent, token, slot)
        batch = BatchedBatch(rows, counts.int())
        return batch, _unweighted(sent, expert * capacity + inside, token, slot)


def _by_expert(sent: Sent, experts: range) -> tuple[Tensor, Tensor, Tensor]:
    """Token, slot and local expert of every pair that arrives, in the order of experts, then of tokens and slots."""
    local, active = sent.local(experts)
    token, slot = torch.where(active)
    expert, order = torch.sort(local[token, slot], stable=True)
    return token[order], slot[order], expert


def _pairs(sent: Sent, token: Tensor, slot: Tensor) -> Tensor:
    """The rows of the pairs, multiplied by their weights where those belong on the input."""
    rows = sent.hidden_states[token]
    if not sent.weight_on_input:
        return rows
    return (rows * sent.weights[token, slot].unsqueeze(-1)).to(rows.dtype)


def _unweighted(sent: Sent, place: Tensor, token: Tensor, slot: Tensor) -> Arrived:
    return Arrived(place, token, slot, None if sent.weight_on_input else sent.weights[token, slot])
