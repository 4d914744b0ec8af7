"""Slots sorted by expert on the host, and the weighted sum that brings their rows back to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.batches import Routing

FEW_SLOTS = 512
"""Up to so many slots plain lists beat tensor operations, which cost some microseconds each whatever their size."""


@final
@dataclass(frozen=True, eq=False)
class SortedSlots:
    """The active slots in the order of their experts.

    `experts`, `counts`: the experts with rows, ascending, and how many each has. `slots`: positions in the
    flattened `[T * K]` routing, expert by expert, in token order within an expert.
    """

    experts: list[int]
    counts: list[int]
    slots: Tensor


def sort_slots(routing: Routing, num_experts: int) -> SortedSlots:
    """Sort the active slots of `routing`; ids outside `[0, num_experts)` are left out."""
    if routing.topk_ids.numel() <= FEW_SLOTS:
        return sort_few(routing.topk_ids, num_experts)
    return sort_many(routing.topk_ids, num_experts)


def sort_few(ids: Tensor, num_experts: int) -> SortedSlots:
    """`sort_slots` with lists."""
    groups: dict[int, list[int]] = {}
    for position, expert in enumerate(ids.flatten().tolist()):
        if 0 <= expert < num_experts:
            groups.setdefault(expert, []).append(position)
    experts = sorted(groups)
    slots = [position for expert in experts for position in groups[expert]]
    return SortedSlots(experts, [len(groups[expert]) for expert in experts], torch.tensor(slots, dtype=torch.int64))


def sort_many(ids: Tensor, num_experts: int) -> SortedSlots:
    """`sort_slots` with tensors."""
    flat = torch.where((ids >= 0) & (ids < num_experts), ids, num_experts).flatten()
    # A sort of int16 is a radix sort: 2.5 times as fast as one of int32.
    keys, order = torch.sort(flat.to(torch.int16) if num_experts < 2**15 else flat, stable=True)
    counts: list[int] = torch.bincount(keys, minlength=num_experts + 1).tolist()[:num_experts]
    experts = [expert for expert, count in enumerate(counts) if count]
    return SortedSlots(experts, [counts[expert] for expert in experts], order[: sum(counts)])


def weighted_sum(table: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """`y[t] = sum_k weights[t, k] * table[row of slot (t, k)]` over active slots, in float32, rounded once.

    Row i of `table` is of slot `slots[i]`; a token without a slot sums to zero. embedding_bag reads every
    row once and sums in float32, but wants weights in the table's dtype: a bfloat16 weight goes in as a high and a
    low part (2^-17 of it is lost); a float16 one could overflow, so there the table is widened.
    """
    num_tokens, top_k = weights.shape
    rows = torch.full((num_tokens * top_k,), -1, dtype=torch.int64)
    rows[slots] = torch.arange(slots.numel())
    flat = weights.reshape(-1)
    if slots.numel() < rows.numel():
        live = rows >= 0
        ends = live.view(num_tokens, top_k).sum(1).cumsum(0)
        rows, flat = rows[live], flat[live]
    else:
        ends = torch.arange(top_k, num_tokens * top_k + 1, top_k)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    if table.dtype == torch.bfloat16:
        high = flat.bfloat16()
        flat = torch.stack([high, (flat - high.float()).bfloat16()], dim=-1).flatten()
        rows, starts = rows.repeat_interleave(2), starts * 2
    elif table.dtype == torch.float16:
        summed = torch.embedding_bag(table.float(), rows, starts, per_sample_weights=flat)[0]
        return summed.to(table.dtype)
    return torch.embedding_bag(table, rows, starts, per_sample_weights=flat.to(table.dtype))[0]
