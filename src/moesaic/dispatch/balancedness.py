"""Balancedness: mean over maximum of what ranks carry; 1 is level, 1/N is everything on one rank.

Planned: the load is known and an expert's replicas share it equally. Realised: tokens are drawn, and go where
`SlotTables.slots` sends them, so that sampling and the choice of replicas count as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from moesaic.checks import whole_number
from moesaic.dispatch.load import checked_load
from moesaic.dispatch.placement import Placement, even_share
from moesaic.dispatch.replicas import shares
from moesaic.errors import DispatchError


def relative(load: Float[Tensor, "layers E"]) -> Float[Tensor, "layers E"]:
    """Each layer of a finite `load` over the power of two that leaves its largest between 1 and 2: sums stay finite.

    Over a power of two, so that the quotients are exact and ranks that carry the same still do. Zeros where all is
    zero.
    """
    most = load.amax(1, keepdim=True)
    power = most / (2 * torch.frexp(most).mantissa)
    return load / power.where(most > 0, 1.0)


def rank_loads(load: Float[Tensor, " E"], placement: Placement) -> Float[Tensor, " N"]:
    """What each rank carries of one layer's load, the replicas of an expert sharing it equally; in the load's unit."""
    share = load / torch.tensor(placement.replicas, device=load.device)
    return torch.stack([share[list(experts)].sum() for experts in placement.experts])


def planned_balancedness(load: Tensor, placements: Sequence[Placement]) -> Float[Tensor, " layers"]:
    """Of each layer, float64, with `load [layers, E]` and one placement a layer; 1 for a layer without load."""
    layers = relative(checked_load(load))
    _check_number(layers, placements)
    return torch.stack([_mean_over_max(rank_loads(row, own)) for row, own in zip(layers, placements, strict=True)])


def realised_balancedness(
    load: Tensor, placements: Sequence[Placement], *, num_tokens: int, top_k: int, batches: int = 8, seed: int = 0
) -> Float[Tensor, " layers"]:
    """Of each layer: the mean over `batches` of `num_tokens` tokens, shared out over the ranks, each drawing experts.

    A token draws `top_k` different experts, each with a chance in proportion to `load` but at most 1 (systematic
    sampling, Madow 1949). The same `seed` draws the same tokens in every run.
    """
    layers = checked_load(load)
    _check_number(layers, placements)
    for name, value in (("num_tokens", num_tokens), ("top_k", top_k), ("batches", batches)):
        whole_number("realised_balancedness", name, value, DispatchError)
    if top_k > layers.shape[1]:
        raise DispatchError(f"top_k is {top_k}, but a token draws different experts and there are {layers.shape[1]}")
    generator = torch.Generator("cpu").manual_seed(seed)
    chances = (shares(layers) * top_k).where(layers > 0, 0.0).clamp(max=1.0)
    found = torch.zeros(batches, len(layers), dtype=torch.float64, device="cpu")
    for layer, placement in enumerate(placements):
        tables, per_rank = placement.tables(), _lengths(num_tokens, placement.num_ranks)
        for batch in range(batches):
            ids = _drawn(chances[layer], num_tokens, top_k, generator).split(per_rank)
            ranks = torch.cat([tables.local(own, rank)[0] for rank, own in enumerate(ids)]).flatten()
            found[batch, layer] = _mean_over_max(torch.bincount(ranks + 1, minlength=placement.num_ranks + 1)[1:])
    return found.mean(0)


def _drawn(chances: Tensor, num_tokens: int, top_k: int, generator: torch.Generator) -> Tensor:
    """`[num_tokens, top_k]` experts, -1 where the chances add up to less than `top_k`.

    The chances lie end to end, in a random order, and a comb of `top_k` teeth at distance 1 falls on them.
    """
    order = torch.randperm(len(chances), generator=generator, device="cpu")
    ends = chances[order].cumsum(0)
    comb = torch.rand(num_tokens, 1, generator=generator, dtype=torch.float64, device="cpu")
    comb = comb + torch.arange(top_k, device="cpu")
    place = torch.searchsorted(ends, comb, right=True)
    return order[place.clamp(max=len(order) - 1)].where(place < len(order), -1)


def _lengths(total: int, parts: int) -> list[int]:
    return [len(even_share(total, parts, part)) for part in range(parts)]


def _mean_over_max(carried: Tensor) -> Tensor:
    most = carried.max()
    return torch.where(most > 0, carried.double().mean() / most, 1.0)


def _check_number(layers: Tensor, placements: Sequence[Placement]) -> None:
    if len(placements) != len(layers):
        raise DispatchError(f"{len(placements)} placements for the load of {len(layers)} layers: give one for each")
    for layer, placement in enumerate(placements):
        if placement.num_experts != layers.shape[1]:
            raise DispatchError(
                f"the load of layer {layer} is of {layers.shape[1]} experts, but its placement has "
                f"{placement.num_experts}"
            )
