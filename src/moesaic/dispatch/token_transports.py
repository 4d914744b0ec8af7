"""Transports of tokens with their routing: the experts weight and sum, and a rank's sum travels back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.dispatch.transport import Arrived, Memory, Sent, Transport, check_max_tokens, within
from moesaic.layouts import Layout, PaddedStandard, Standard


@final
@dataclass(frozen=True)
class Gathered(Transport):
    """All-gather: every rank gets every token, Standard, with the ids of other ranks' experts outside `[0, L)`.

    As vLLM's allgather_reducescatter: an id keeps its distance from the rank's first expert, so it may be negative or
    L and more, and an inactive slot keeps whatever value it had.
    """

    @property
    @override
    def layout(self) -> Layout:
        return Standard()

    @override
    def deliver(self, sent: Sent, experts: range, memory: Memory) -> tuple[Batch, Arrived]:
        local, _ = sent.local(experts)
        rows = memory.rows(sent.hidden_states, len(local))
        rows.copy_(sent.hidden_states)
        # Ids at the ends of int32 stay out of range, but do not wrap around into it.
        routing = Routing(local.clamp(-(2**31), 2**31 - 1).int(), sent.weights.clone())
        token = torch.arange(len(local), device=local.device)
        return StandardBatch(rows, routing), _weighted(token, token, experts)


@final
@dataclass(frozen=True)
class Deduplicated(Transport):
    """DeepEP V2, decode: a token arrives once on each rank that it needs; a worst-case buffer with a valid prefix.

    PaddedStandard of `N * max_tokens` rows; ids outside the rank are -1; the tail is undefined and `num_valid` says
    where it begins.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        check_max_tokens(self, self.max_tokens)

    @property
    @override
    def layout(self) -> Layout:
        return PaddedStandard()

    @property
    @override
    def max_tokens_per_rank(self) -> int | None:
        return self.max_tokens

    @override
    def deliver(self, sent: Sent, experts: range, memory: Memory) -> tuple[Batch, Arrived]:
        _, active = sent.local(experts)
        token = torch.where(active.any(1))[0]
        place = torch.arange(len(token), device=token.device)
        batch = _padded(sent, experts, memory, token, place, sent.num_ranks * self.max_tokens)
        num_valid = torch.tensor(len(token), dtype=torch.int32, device=token.device)
        return replace(batch, num_valid=num_valid), _weighted(place, token, experts)


@final
@dataclass(frozen=True)
class RankMajor(Transport):
    """One-sided puts: as Deduplicated, but each source rank owns `max_tokens` rows, so padding lies in the middle.

    As TensorRT-LLM's NVLink one-sided buffer `[N, max_tokens]`; only the ids say which rows are valid.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        check_max_tokens(self, self.max_tokens)

    @property
    @override
    def layout(self) -> Layout:
        return PaddedStandard()

    @property
    @override
    def max_tokens_per_rank(self) -> int | None:
        return self.max_tokens

    @override
    def deliver(self, sent: Sent, experts: range, memory: Memory) -> tuple[Batch, Arrived]:
        _, active = sent.local(experts)
        token = torch.where(active.any(1))[0]
        source = sent.rank[token]
        place = source * self.max_tokens + within(source)
        batch = _padded(sent, experts, memory, token, place, sent.num_ranks * self.max_tokens)
        return batch, _weighted(place, token, experts)


def _padded(sent: Sent, experts: range, memory: Memory, token: Tensor, place: Tensor, size: int) -> PaddedStandardBatch:
    """`size` rows of which `token` lie at `place`; other rows are undefined, and so is the weight of inactive slots."""
    local, active = sent.local(experts)
    top_k = local.shape[1]
    rows, weights = memory.rows(sent.hidden_states, size), memory.weights(sent.weights, size, top_k)
    ids = torch.full((size, top_k), -1, dtype=torch.int32, device=local.device)
    rows[place] = sent.hidden_states[token]
    ids[place] = torch.where(active, local, -1)[token].int()
    weights[place] = torch.where(active, sent.weights, memory.poison)[token]
    return PaddedStandardBatch(rows, Routing(ids, weights))


def _weighted(place: Tensor, token: Tensor, experts: range) -> Arrived:
    # A rank's experts come before those of the next, so its first one says when its turn is.
    return Arrived(place, token, torch.full_like(token, experts.start), None)
