"""Few slots on a CPU: plain lists instead of tensor operations, which cost microseconds each at any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_weights import CpuWeights
from moesaic.batches import Routing
from moesaic.problem import Problem

FEW_SLOTS = 512
"""Slots up to which lists win: they sort 512 in 53 microseconds, and 8 in 4, less than one tensor operation takes."""

Compute: TypeAlias = Callable[[list[int], list[int], Tensor], Tensor]
"""Experts with rows, how many each has, and the rows `[S, H]`, expert by expert, to their unweighted results."""


def run_few(hidden_states: Tensor, routing: Routing, problem: Problem, compute: Compute) -> Tensor:
    """The weighted sum over the slots of every token; a token without an active slot sums to zero."""
    experts, counts, slots = sorted_slots(routing.topk_ids, problem.num_experts)
    if not slots:
        return torch.zeros_like(hidden_states)
    table = compute(experts, counts, _gathered(hidden_states, slots, routing, problem))
    return _summed(table, slots, routing, problem)


def compute_few(experts: list[int], counts: list[int], rows: Tensor, weights: CpuWeights, problem: Problem) -> Tensor:
    """`Compute` with one product for each expert."""
    pieces = rows.split(counts)
    first = torch.cat([weights.gate_up[expert](piece) for expert, piece in zip(experts, pieces, strict=True)])
    ids = expert_ids(experts, counts) if weights.per_expert else None
    inner = activate(problem.activation, first, ids, wide=None, out=None).split(counts)
    second = torch.cat([weights.down[expert](piece) for expert, piece in zip(experts, inner, strict=True)])
    return weights.normed(second, problem)


def expert_ids(experts: list[int], counts: list[int]) -> Tensor:
    """The expert of every row."""
    return torch.tensor(experts, device="cpu").repeat_interleave(torch.tensor(counts, device="cpu"))


def sorted_slots(ids: Tensor, num_experts: int) -> tuple[list[int], list[int], list[int]]:
    """The experts with rows, ascending; how many each has; their positions in the flattened ids, expert by expert."""
    groups: dict[int, list[int]] = {}
    for position, expert in enumerate(ids.flatten().tolist()):
        if 0 <= expert < num_experts:
            groups.setdefault(expert, []).append(position)
    experts = sorted(groups)
    counts = [len(groups[expert]) for expert in experts]
    return experts, counts, [position for expert in experts for position in groups[expert]]


def _gathered(hidden_states: Tensor, slots: list[int], routing: Routing, problem: Problem) -> Tensor:
    """The rows of all experts, `[S, H]`; with one token a view of it."""
    top_k = routing.topk_ids.shape[1]
    if hidden_states.shape[0] == 1:
        rows = hidden_states.expand(len(slots), -1)
    else:
        rows = hidden_states.index_select(0, torch.tensor([slot // top_k for slot in slots], device="cpu"))
    if problem.weight_on_input:
        rows = (rows * _weights(routing, slots).unsqueeze(-1)).to(rows.dtype)
    return rows


def _summed(table: Tensor, slots: list[int], routing: Routing, problem: Problem) -> Tensor:
    """Row i of `table`, of slot `slots[i]`, weighted and summed to its token in float32, rounded once."""
    num_tokens, top_k = routing.topk_ids.shape
    wide = table if table.dtype == torch.float64 else table.float()
    ones = problem.weight_on_input
    if num_tokens == 1:  # where each tensor operation counts: a list is cheaper to take from
        weights = [1.0] * top_k if ones else routing.topk_weights.flatten().tolist()
        line = torch.tensor([[weights[slot] for slot in slots]], dtype=wide.dtype, device="cpu")
        return (line @ wide).to(problem.dtype)
    factors = wide.new_ones(len(slots)) if ones else _weights(routing, slots).to(wide.dtype)
    order = sorted(range(len(slots)), key=slots.__getitem__)
    starts, row = [], 0
    for token in range(num_tokens):
        starts.append(row)
        while row < len(order) and slots[order[row]] < (token + 1) * top_k:
            row += 1
    index = torch.tensor(order, device="cpu")
    summed = torch.embedding_bag(wide, index, torch.tensor(starts, device="cpu"), per_sample_weights=factors[index])[0]
    return summed.to(problem.dtype)


def _weights(routing: Routing, slots: list[int]) -> Tensor:
    return routing.topk_weights.flatten()[torch.tensor(slots, device="cpu")]
