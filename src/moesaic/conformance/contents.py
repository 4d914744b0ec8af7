"""Contents: tokens, routing and weights of a case, drawn from its seed, before they are laid out in any layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.conformance.case import Case
from moesaic.output_norm import OutputNorm
from moesaic.weights import ExpertWeights

INACTIVE_SHARE = 0.25
"""Share of the slots that are inactive beside those of padding tokens, where the problem admits inactive slots."""


@final
@dataclass(frozen=True, eq=False)
class Contents:
    """`hidden_states [T, H]` in the dtype of the problem; `ids [T, K]` int32, -1 inactive; `weights [T, K]` float32."""

    hidden_states: Tensor
    ids: Tensor
    weights: Tensor

    @property
    def active(self) -> Tensor:
        """Bool `[T, K]`: the slots that name an expert."""
        return self.ids >= 0


def contents_of(case: Case) -> Contents:
    """The contents that the seed of `case` stands for."""
    problem, generator = case.problem, _generator(case.seed, 1)
    rows = torch.randn(case.num_tokens, problem.hidden_size, generator=generator)
    # Every fourth row is small: a scale that is taken over all rows then loses its bits.
    rows[3::4] *= 0.25
    weights = torch.rand(case.num_tokens, problem.top_k, generator=generator) + 0.1
    return Contents(rows.to(problem.dtype), _ids(case, generator), weights)


def empty_expert(case: Case) -> int | None:
    """The expert that no slot names; None if there is only one expert, or if each token needs all of them.

    By the seed the middle one, the first or the last: a search may begin or end at one that has no rows.
    """
    experts, top_k = case.problem.num_experts, case.problem.top_k
    if experts == 1 or (not case.problem.duplicate_ids and top_k >= experts):
        return None
    return (experts // 2, 0, experts - 1)[case.seed % 3]


def weights_of(case: Case) -> ExpertWeights:
    """The weights that the seed of `case` stands for; every term is so large that losing it shows."""
    return plain_weights_of(case).quantize(case.problem.scheme.weights)


def plain_weights_of(case: Case) -> ExpertWeights:
    """The same before they are stored in the format of the problem."""
    problem, generator = case.problem, _generator(case.seed, 2)
    experts, hidden, inner, width = (
        problem.num_experts,
        problem.hidden_size,
        problem.intermediate_size,
        problem.width,
    )

    def normal(*shape: int, scale: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(problem.dtype)

    return ExpertWeights.plain(
        normal(experts, width, hidden, scale=3 / hidden**0.5),
        normal(experts, hidden, inner, scale=1 / inner**0.5),
        gate_up_bias=normal(experts, width, scale=1.0) if problem.bias else None,
        down_bias=normal(experts, hidden, scale=1.0) if problem.bias else None,
        output_scale=1 + normal(hidden, scale=0.3) if isinstance(problem.output_norm, OutputNorm) else None,
    )


def _ids(case: Case, generator: torch.Generator) -> Tensor:
    problem, tokens = case.problem, case.num_tokens
    experts, top_k = problem.num_experts, problem.top_k
    rank = torch.randperm(experts, generator=generator).double()
    load = (1 + rank).pow(-case.skew).clamp_min(1e-30)
    empty = empty_expert(case)
    if empty is not None:
        load[empty] = 0
    if problem.duplicate_ids:
        ids = torch.multinomial(load.expand(max(tokens, 1), experts), top_k, replacement=True, generator=generator)
    else:
        chosen = min(top_k, int((load > 0).sum()))
        ids = torch.full((max(tokens, 1), top_k), -1)
        ids[:, :chosen] = torch.multinomial(
            load.expand(max(tokens, 1), experts), chosen, replacement=False, generator=generator
        )
    ids = ids[:tokens].to(torch.int32)
    if problem.inactive_slots:
        ids[torch.rand(ids.shape, generator=generator) < INACTIVE_SHARE] = -1
        ids[padding_tokens(case)] = -1
    return ids


def padding_tokens(case: Case) -> Tensor:
    """Bool `[T]`: the tokens without an active slot; half of them in the middle, half at the end."""
    tokens = case.num_tokens
    padded, position = round(case.padding * tokens), torch.arange(tokens)
    middle = padded // 2
    start = (tokens - padded) // 2
    return ((position >= start) & (position < start + middle)) | (position >= tokens - (padded - middle))


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 8 + stream)
