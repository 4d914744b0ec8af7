"""Many slots on a CPU: sorted once, then expert by expert, chunk of tokens by chunk of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from moesaic.backends.cpu_blocks import Blocks, blocks_between
from moesaic.backends.cpu_weights import CpuWeights
from moesaic.batches import Routing
from moesaic.problem import Problem

TABLE_BYTES = 24 << 20
"""Tokens come in chunks whose slots' results take so much: glibc maps anew, and faults in, what is over 32 MiB."""

CHUNK_ROWS = 256
"""Rows an expert, on average, that a chunk has at least: fewer would read the weights too often."""


def chunk_tokens(problem: Problem) -> int:
    """Tokens in a chunk."""
    fitting = TABLE_BYTES // (problem.top_k * problem.hidden_size * problem.dtype.itemsize)
    return max(fitting, CHUNK_ROWS * problem.num_experts // problem.top_k, 1)


def run_many(hidden_states: Tensor, routing: Routing, weights: CpuWeights, problem: Problem) -> Tensor:
    """The weighted sum over the slots of every token; a token without an active slot sums to zero."""
    output = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    step = chunk_tokens(problem)
    for start in range(0, hidden_states.shape[0], step):
        chunk = slice(start, start + step)
        ids, factors = routing.topk_ids[chunk], routing.topk_weights[chunk]
        counts, slots = sorted_slots(ids, problem.num_experts)
        scales = factors.flatten()[slots].unsqueeze(-1) if problem.weight_on_input else None
        tokens = slots.div(ids.shape[1], rounding_mode="floor")
        table = _table(hidden_states[chunk], tokens, scales, counts, weights, problem)
        output[chunk] = weighted_sum(table, slots, torch.ones_like(factors) if problem.weight_on_input else factors)
    return output


def sorted_slots(ids: Tensor, num_experts: int) -> tuple[list[int], Tensor]:
    """Rows of each expert; positions in the flattened ids, expert by expert. Ids outside the experts are left out."""
    flat = torch.where((ids >= 0) & (ids < num_experts), ids, num_experts).flatten()
    keys, order = torch.sort(flat, stable=True)
    counts: list[int] = torch.bincount(keys, minlength=num_experts + 1).tolist()[:num_experts]
    return counts, order[: sum(counts)]


def _table(
    hidden_states: Tensor,
    tokens: Tensor,
    scales: Tensor | None,
    counts: list[int],
    weights: CpuWeights,
    problem: Problem,
) -> Tensor:
    """Every sorted slot's unweighted result, and a row of zeros behind them."""
    table = hidden_states.new_empty(tokens.numel() + 1, problem.hidden_size)
    table[-1] = 0
    blocks = Blocks.of(problem, max(counts))
    start = 0
    for expert, count in enumerate(counts):
        for block in blocks_between(start, start + count):
            rows = blocks.rows[: block.stop - block.start]
            torch.index_select(hidden_states, 0, tokens[block], out=rows)
            if scales is not None:
                rows.copy_(rows * scales[block])
            blocks.compute(table[block], expert, weights, problem)
        start += count
    return table


def weighted_sum(table: Tensor, slots: Tensor, factors: Tensor) -> Tensor:
    """`y[t] = sum_k factors[t, k] * table[row of slot (t, k)]` over active slots, in float32, rounded once.

    Row i of `table` is of slot `slots[i]`, its last row is zero; a token without a slot sums to zero. embedding_bag
    reads every row once and sums in float32 (3.5 ms for 32768 rows of 1024 on two Zen 4 cores), but wants
    factors in the table's dtype: a bfloat16 factor goes in as a high and a low part (2^-16 of it is lost); a float16
    one could overflow, so there the table is widened.
    """
    num_tokens, top_k = factors.shape
    rows = torch.full((num_tokens * top_k,), -1, dtype=torch.int64, device="cpu")
    rows[slots] = torch.arange(slots.numel(), device="cpu")
    flat = factors.reshape(-1)
    if slots.numel() < rows.numel():
        live = rows >= 0
        ends = live.view(num_tokens, top_k).sum(1).cumsum(0)
        rows, flat = rows[live], flat[live]
    else:
        ends = torch.arange(top_k, num_tokens * top_k + 1, top_k, device="cpu")
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    if table.dtype == torch.bfloat16:
        # Cut off, not rounded, so that a finite factor stays finite. A low part of zero goes to the row of zeros,
        # because zero times an infinite result would be NaN.
        high = (flat.float().view(torch.int32) & -65536).view(torch.float32)
        low = (flat.float() - high).nan_to_num(0.0, 0.0, 0.0).bfloat16()
        rows = torch.stack([rows, torch.where(low == 0, table.shape[0] - 1, rows)], dim=-1).flatten()
        flat, starts = torch.stack([high.bfloat16(), low], dim=-1).flatten(), starts * 2
    elif table.dtype == torch.float16:
        summed = torch.embedding_bag(table.float(), rows, starts, per_sample_weights=flat.float())[0]
        return summed.to(table.dtype)
    return torch.embedding_bag(table, rows, starts, per_sample_weights=flat.to(table.dtype))[0]
