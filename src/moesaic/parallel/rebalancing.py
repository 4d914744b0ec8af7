"""rebalance: a layer that serves under one placement is given another, on all ranks or on none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from moesaic.checks import instance, whole_number
from moesaic.dispatch import recorded
from moesaic.dispatch.agreement import agree
from moesaic.dispatch.all_or_none import all_or_none
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.moving import Progress, Relocation
from moesaic.dispatch.over_ranks import OverRanks
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.transfers import transfers
from moesaic.errors import DispatchError, WeightsError
from moesaic.layer import MoE, bind
from moesaic.parallel.expert_stacks import room_for, stacks
from moesaic.parallel.replacing import activation_of, over_ranks, placed
from moesaic.weights import ExpertWeights

CHUNK_BYTES = 2**24
"""Of a message, unless the caller says otherwise."""

OTHERWISE = "no rank was changed, and the old placement serves on"
"""How every error of a rebalance that failed ends."""


def rebalance(
    layer: MoE,
    placement: Placement,
    *,
    ranks: Ranks | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress | None = None,
) -> None:
    """Give `layer` the experts of `placement`; all of its ranks call this at the same point of the program.

    Weights travel in messages of at most `chunk_bytes`, from a rank that has an expert to one that will, each verified
    by its checksum. Until all ranks have theirs and have prepared them, `layer` serves as before; `progress(done, of)`,
    called after each step of messages, may run it. Then all ranks switch, and give the old weights free.

    `ranks`: the group that is used, the dispatcher's unless given. A rank that is silent spoils it (CollectiveError);
    with another group of the same ranks the layer's own stays as it is.

    Raises FleetError, the same on all ranks, if one of them fails (memory, a checksum, `progress`, an argument);
    DispatchError, the same on all ranks, if they are told different things. Then nothing is changed on any. Without
    `ranks`, a rank whose layer is none, or has no placement, knows of no group: its DispatchError is its own, and the
    others wait for it until their time is over.
    """
    known = _group(layer, ranks)
    with nullcontext() if known is None else _guard(known, "what is asked for"):
        dispatcher = _check(layer, placement, ranks, chunk_bytes, progress)
    ranks, before = dispatcher.ranks if ranks is None else ranks, dispatcher.placement
    facts = {"current placement": repr(before), "new placement": repr(placement), "chunk_bytes": str(chunk_bytes)}
    agree(ranks, {**facts, "progress": str(progress is not None)}, owner="rebalance")
    if placement == before:
        return
    weights = _moved(layer, ranks, placement, chunk_bytes // 8 * 8, progress)
    activation = activation_of(layer.experts.problem.activation, dispatcher, ranks, placement)
    with _guard(ranks, "preparing the weights"):
        resolution = layer.experts.resolution
        problem = replace(layer.experts.problem, num_experts=weights.down.shape[0], activation=activation)
        backends = [verdict.backend for verdict in resolution.verdicts]
        experts = bind(problem, weights, machine=resolution.machine, backends=backends)
        changed = placed(layer.dispatcher, placement)
    agree(ranks, {"backend": experts.backend.name}, owner="rebalance")
    layer.dispatcher, layer.experts = changed, experts  # which cannot fail


def _group(layer: object, ranks: object) -> Ranks | None:
    """The ranks that all are told by what is wrong, as far as the arguments of this one say who they are."""
    if isinstance(ranks, Ranks):
        return ranks
    inner = recorded.over_ranks(layer.dispatcher) if isinstance(layer, MoE) else None
    return None if inner is None else inner.ranks


def _check(
    layer: MoE, placement: Placement, ranks: Ranks | None, chunk_bytes: int, progress: Progress | None
) -> OverRanks[Any]:
    """The dispatcher of `layer`, once everything that was asked for can be done."""
    instance(
        "rebalance", "layer", layer, MoE, DispatchError, example="MoE(router, AllToAll(ranks, placement), experts)"
    )
    dispatcher = over_ranks(layer.dispatcher)
    instance("rebalance", "placement", placement, Placement, DispatchError, example="Placement.contiguous(8, 2)")
    transfers(dispatcher.placement, placement)  # raises if it is of another size
    whole_number("rebalance", "chunk_bytes", chunk_bytes, DispatchError, at_least=8)
    if progress is not None and not callable(progress):
        raise DispatchError(f"rebalance.progress is {progress!r}, but it needs a function of two numbers, or None")
    own = dispatcher.ranks
    if ranks is None:
        return dispatcher
    instance("rebalance", "ranks", ranks, Ranks, DispatchError, example="Ranks(torch.distributed.new_group())")
    if (ranks.rank, ranks.size) != (own.rank, own.size):
        raise DispatchError(
            f"the layer is on {own}, but ranks are {ranks}: give a group of the same ranks in one order"
        )
    return dispatcher


def _moved(
    layer: MoE, ranks: Ranks, placement: Placement, chunk_bytes: int, progress: Progress | None
) -> ExpertWeights:
    """The weights of the experts that `placement` gives to this rank."""
    dispatcher = over_ranks(layer.dispatcher)
    with _guard(ranks, "room for the new weights"):
        old = layer.experts.canonical()
        if any(tensor.requires_grad for tensor in old.tensors):
            raise WeightsError(
                "the weights require gradients, but those that arrive from another rank would not: bind weights that "
                "are detached"
            )
        new = room_for(old, len(placement.experts[dispatcher.share]))
        way = Relocation(
            ranks, dispatcher.shards, dispatcher.placement, placement, stacks(old), stacks(new), chunk_bytes
        )
        way.keep()
    way.run(partial(_guard, ranks), progress)
    return new


def _guard(ranks: Ranks, step: str) -> AbstractContextManager[None]:
    return all_or_none(ranks, f"rebalance, {step}", OTHERWISE)
