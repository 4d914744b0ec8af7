"""The same dispatcher, and the same activation, for another placement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moesaic.activations import Activation
from moesaic.dispatch import recorded
from moesaic.dispatch.base import Dispatcher
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.over_ranks import OverRanks
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.texts import gather_texts
from moesaic.errors import DispatchError


def over_ranks(dispatcher: Dispatcher[Any]) -> OverRanks[Any]:
    """The dispatcher that knows ranks and placement. Raises DispatchError if there is none."""
    inner = recorded.over_ranks(dispatcher)
    if inner is None:
        raise DispatchError(
            f"the layer's dispatcher is {dispatcher.__class__.__name__}, which has no placement: build it with "
            "AllToAll, AllGather, PaddedAllToAll, LowLatency or SymmetricMemory"
        )
    return inner


def placed(dispatcher: Dispatcher[Any], placement: Placement) -> Dispatcher[Any]:
    """`dispatcher` for `placement`, with the same ranks and the same recorder."""
    if isinstance(dispatcher, recorded.Recorded):
        return replace(dispatcher, dispatcher=placed(dispatcher.dispatcher, placement))
    return replace(over_ranks(dispatcher), placement=placement)


def activation_of(activation: Activation, dispatcher: OverRanks[Any], ranks: Ranks, placement: Placement) -> Activation:
    """`activation` with the constants of the experts that `placement` gives to this rank, instead of those it has.

    All ranks call this. Constants that are the same for all experts of a rank are a number there, so each rank tells
    what it has, and numbers that differ between ranks are their experts' own as well. Raises DispatchError, the same on
    all ranks, if replicas of an expert differ or one has no number.
    """
    own = {name: value for name, value in activation.constants().items() if isinstance(value, tuple | float | None)}
    every = [json.loads(text) for text in gather_texts(ranks, json.dumps(own), "rebalance", "constants")]
    names = [name for name in own if any(isinstance(told[name], list) or told[name] != own[name] for told in every)]
    placed = [dispatcher.placement.experts[rank // dispatcher.shards] for rank in range(ranks.size)]
    found = {name: _of_experts(name, [told[name] for told in every], placed) for name in names}
    held = placement.experts[dispatcher.share]
    return replace(activation, **{name: tuple(values[expert] for expert in held) for name, values in found.items()})


def _of_experts(name: str, told: Sequence[Any], placed: Sequence[tuple[int, ...]]) -> Mapping[int, float]:
    """The constant of each expert, given what each rank says of those it holds."""
    found: dict[int, float] = {}
    for rank, (value, experts) in enumerate(zip(told, placed, strict=True)):
        values = value if isinstance(value, list) else [value] * len(experts)
        for expert, number in zip(experts, values, strict=True):
            if number is None or found.setdefault(expert, number) != number:
                raise DispatchError(
                    f"rebalance: {name} of expert {expert} is {number} on rank {rank}, but other experts or ranks have "
                    "a number of their own there: bind every replica of an expert with the same constants"
                )
    return found
