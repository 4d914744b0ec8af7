"""What ranks hand in: tokens whose experts are equally popular, or so by Zipf's law; and where the experts are."""

from __future__ import annotations

import torch
from dispatching.shapes import Job
from torch import Tensor

from moesaic import Routing
from moesaic.dispatch.balance import balance
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.placement import Placement

ROUTINGS = {"uniform": 0.0, "zipf_0.8": 0.8}
"""By name the exponent s: expert e is drawn with a weight of (e + 1) ** -s.

The popular experts are the first ones, so that the contiguous placement, which gives them to the first ranks, is as far
from level as it can be.
"""
PLACEMENTS = ("contiguous", "balanced")
HISTORY = 1 << 14
"""Tokens that the balanced placement was planned on; none of them is measured."""


def drawn(num_tokens: int, num_experts: int, top_k: int, exponent: float, generator: torch.Generator) -> Tensor:
    """`[T, K]` different experts a token, one after the other without putting back, on the generator's device.

    The largest of log-weights with Gumbel noise are such a sample (Efraimidis and Spirakis 2006).
    """
    options = {"device": generator.device, "dtype": torch.float32}
    popularity = -exponent * torch.arange(1, num_experts + 1, **options).log()
    noise = torch.empty(num_tokens, num_experts, **options).exponential_(generator=generator).log()
    return (popularity - noise).topk(top_k).indices.int()


def placed(name: str, job: Job, exponent: float) -> Placement:
    """One slot an expert, in order, or as `balance` plans it for what other tokens of this routing asked for."""
    experts, size = job.shape.num_experts, job.ranks.size
    if name == "contiguous":
        return Placement.contiguous(experts, size)
    ids = drawn(HISTORY, experts, job.shape.top_k, exponent, torch.Generator().manual_seed(11))
    load = torch.bincount(ids.flatten(), minlength=experts)
    return balance(load, num_slots=experts, num_ranks=size)[0]


def call(job: Job, tokens: int, exponent: float, seed: int) -> Call:
    """Other tokens and another routing for each rank and seed."""
    device, shape = job.ranks.device, job.shape
    generator = torch.Generator(device).manual_seed(1000 * job.ranks.rank + seed)
    ids = drawn(tokens, shape.num_experts, shape.top_k, exponent, generator)
    weights = torch.randn(tokens, shape.top_k, generator=generator, device=device).softmax(-1)
    rows = torch.randn(tokens, shape.hidden_size, generator=generator, device=device).to(job.dtype)
    return rows, Routing(ids, weights)


def flows(job: Job, placement: Placement, calls: list[Call]) -> tuple[Tensor, Tensor]:
    """On average over the calls, float64 `[N, N]`: of each rank (row) to each (column) the tokens that need it, each
    once; and the (token, slot) pairs.
    """
    tables, size = placement.tables(job.ranks.device), job.ranks.size
    every = torch.arange(size, device=job.ranks.device)
    tokens, pairs = (torch.zeros(size, dtype=torch.float64, device=job.ranks.device) for _ in range(2))
    for _, routing in calls:
        goes = tables.local(routing.topk_ids, job.ranks.rank)[0].unsqueeze(-1) == every  # [T, K, N]
        tokens += goes.any(1).sum(0)
        pairs += goes.sum((0, 1))
    found = job.ranks.all_gather(torch.stack([tokens, pairs]) / len(calls), "what goes where").cpu()
    return found[:, 0], found[:, 1]


def balancedness(pairs: Tensor) -> float:
    """Mean over maximum of the pairs that each rank computes: 1 is level."""
    carried = pairs.sum(0)
    return (carried.mean() / carried.max()).item()


def busiest(tokens: Tensor) -> float:
    """Tokens through the busiest direction of the busiest link: what one rank sends to others, or gets from them."""
    others = tokens - tokens.diag().diag()
    return max(others.sum(0).max().item(), others.sum(1).max().item())
