"""load_experts: the experts that a placement gives to a rank, from the files of a checkpoint to a bound layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moesaic.activations import Activation
from moesaic.backends import BACKENDS, Backend
from moesaic.checkpoints import Checkpoint
from moesaic.checks import instance, whole_number
from moesaic.dispatch.agreement import agree
from moesaic.dispatch.all_or_none import all_or_none
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError
from moesaic.layer import Experts, bind
from moesaic.layouts import Layout, Standard

OTHERWISE = "no rank has loaded the layer"
"""How the error of a layer that could not be loaded ends."""


def load_experts(
    checkpoint: Checkpoint | str | Path,
    layer: int | str,
    placement: Placement,
    ranks: Ranks,
    *,
    activation: Activation,
    top_k: int,
    layout: Layout = Standard(),  # noqa: B008 - a frozen value
    backends: Sequence[Backend[Any]] = BACKENDS,
) -> Experts:
    """The experts of `layer` that `placement` gives to this rank, read from the checkpoint and bound in its format.

    All ranks call this at the same point of the program, and each reads the bytes of its own experts only, to the
    device of `ranks`. Per-expert constants of `activation` are those of the whole layer. `layout`: that of the
    dispatcher which will bring the rows, for instance `LowLatency(ranks, placement, max_tokens=64).layout`. Give a
    `Checkpoint` when several layers are loaded, since making one reads the headers of all files.

    On S times as many ranks as the placement is for, each rank reads the experts of `rank // S` and keeps its shard of
    them (`ExpertWeights.shard`), as a dispatcher with `shards=S` needs it.

    Raises FleetError, the same on all ranks, if one of them cannot read or bind; DispatchError, the same on all ranks,
    if they are told different things or choose different backends.
    """
    instance("load_experts", "ranks", ranks, Ranks, DispatchError, example="Ranks.world()")
    with all_or_none(ranks, "load_experts", OTHERWISE):
        opened = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        _check(opened, layer, placement, ranks)
        _check_asked(opened.num_experts(layer), activation, top_k, layout)
        shards = ranks.size // placement.num_ranks
        held = placement.experts[ranks.rank // shards]
        own = activation.select(held)
        problem = opened.problem(layer, activation=own, top_k=top_k, num_experts=len(held), expert=held[0])
        problem = replace(problem, layout=layout)
        weights = opened.read(layer, experts=held, device=ranks.device)
        if shards > 1:
            weights = weights.shard(ranks.rank % shards, shards)
            problem = replace(problem, intermediate_size=problem.intermediate_size // shards)
        experts = bind(problem, weights, backends=backends)
    facts = {
        "layer": opened.layer(layer).name,
        "placement": repr(placement),
        "method": repr(opened.method),
        "activation": repr(activation),
        "top_k": str(top_k),
        "layout": repr(layout),
        "scheme": repr(problem.scheme),
        "dtype": str(problem.dtype),
        "backend": experts.backend.name,
    }
    agree(ranks, facts, owner="load_experts")
    return experts


def _check(checkpoint: Checkpoint, layer: int | str, placement: Placement, ranks: Ranks) -> None:
    instance("load_experts", "placement", placement, Placement, DispatchError, example="Placement.contiguous(8, 2)")
    total = checkpoint.num_experts(layer)
    if placement.num_experts != total or ranks.size % placement.num_ranks:
        raise DispatchError(
            f"the placement is of {placement.num_experts} experts on {placement.num_ranks} ranks, but "
            f"{checkpoint.layer(layer).name} has {total} and the group {ranks.size} ranks"
        )


def _check_asked(num_experts: int, activation: Activation, top_k: int, layout: Layout) -> None:
    """Against all experts of the layer: of a rank's own, these could fit by chance."""
    instance("load_experts", "activation", activation, Activation, DispatchError, example="SwiGLU()")
    instance("load_experts", "layout", layout, Layout, DispatchError, example="BatchedExperts()")
    for name, length in activation.per_expert().items():
        if length != num_experts:
            raise DispatchError(
                f"{activation.__class__.__name__}.{name} holds {length} values, but the layer has {num_experts} "
                "experts: give one number, or one for each of them"
            )
    if whole_number("load_experts", "top_k", top_k, DispatchError) > num_experts:
        raise DispatchError(f"load_experts.top_k is {top_k}, but the layer has {num_experts} experts")
