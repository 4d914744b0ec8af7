"""The dispatchers that are measured, by name. What several placements can share, a window, is opened once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch

from moesaic import FP8, Dispatcher, Format, Local, PerGroup, Plain
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.arrangement import Arrangement, AsArrived
from moesaic.dispatch.by_expert import GroupedByExpert, SlabPerExpert
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.open_window import open_window
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.symmetric_memory import SymmetricMemory

LOCAL = "local"
"""Every rank has all experts and nothing travels: what expert parallelism is compared with."""
SLABS = frozenset({"low_latency", "symmetric_slabs"})
SLABS_UP_TO = 128
"""Tokens a rank: a slab for every expert has room for all tokens of all ranks."""


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a dispatcher is built for."""

    max_tokens: int
    hidden_size: int
    top_k: int
    dtype: torch.dtype


Placed = Callable[[Placement], Dispatcher[Any]]
Open = Callable[[Ranks, Sizes], Placed]
"""All ranks call it together. Raises FleetError on all of them where the machine does not have what it takes."""


CODES = FP8(PerGroup(128))
"""What tokens are rounded to on their way, where a dispatcher is told to."""


def symmetric(arrangement: Arrangement, wire: Format = Plain()) -> Open:  # noqa: B008 - a frozen value
    """Through one window."""

    def opened(ranks: Ranks, sizes: Sizes) -> Placed:
        window = open_window(ranks, arrangement=arrangement, **vars(sizes))
        return lambda placement: SymmetricMemory(ranks, placement, window, arrangement, wire=wire)

    return opened


DISPATCHERS: dict[str, Open] = {
    "symmetric": symmetric(AsArrived()),
    "padded": lambda ranks, sizes: lambda placement: PaddedAllToAll(ranks, placement, sizes.max_tokens),
    LOCAL: lambda *_: lambda _: Local(),
    "symmetric_fp8": symmetric(AsArrived(), CODES),
    "padded_fp8": lambda ranks, sizes: lambda placement: PaddedAllToAll(ranks, placement, sizes.max_tokens, wire=CODES),
    "symmetric_slabs": symmetric(SlabPerExpert()),
    "symmetric_grouped": symmetric(GroupedByExpert(16)),
    "low_latency": lambda ranks, sizes: lambda placement: LowLatency(ranks, placement, sizes.max_tokens),
    "padded_grouped": lambda ranks, sizes: (
        lambda placement: PaddedAllToAll(ranks, placement, sizes.max_tokens, GroupedByExpert(16))
    ),
    "all_to_all": lambda ranks, _: lambda placement: AllToAll(ranks, placement),
    "all_gather": lambda ranks, _: lambda placement: AllGather(ranks, placement),
}
"""In the order in which they are measured, so that a budget leaves out the last."""
