"""Traffic: what the ranks of a fleet hand in, as a value without tensors, and the traffic that every fleet is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from moesaic.batches import Routing
from moesaic.conformance.feeding import garbage_ids
from moesaic.dispatch.fleet import Call, Fleet
from moesaic.errors import DispatchError
from moesaic.quant import FP8, Format

WEIGHTS = (0.5, 0.25, 2.0)
"""Router weights: powers of two, so that sums of whole numbers are exact; none is its own square."""


@final
@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Equal traffic has equal contents. `tokens`: of each rank. `inactive`: share of the slots without an expert.

    `hot`: the only rank whose experts are named; None for all. `duplicates`: an expert may be named twice in a token.
    `rotation`: which garbage the inactive slots begin with (-1, E, E + 5, the ends of int32 and others in turn).
    """

    tokens: tuple[int, ...]
    top_k: int
    hidden_size: int
    dtype: torch.dtype = torch.float32
    hot: int | None = None
    inactive: float = 0.25
    duplicates: bool = False
    rotation: int = 0
    seed: int = 0

    def calls(self, fleet: Fleet[object], device: torch.device) -> list[Call]:
        """What each rank hands in: whole numbers of up to 3 as hidden states, weights of `WEIGHTS`.

        Behind a fleet that rounds tokens, numbers that it leaves as they are.
        """
        generator, count = torch.Generator().manual_seed(self.seed), sum(self.tokens)
        named = torch.arange(fleet.num_experts) if self.hot is None else torch.tensor(fleet.experts(self.hot))
        hidden = torch.randint(-3, 4, (count, self.hidden_size), generator=generator).to(self.dtype)
        hidden = _kept_by(fleet.rounding, hidden)
        weights = torch.tensor(WEIGHTS)[torch.randint(len(WEIGHTS), (count, self.top_k), generator=generator)]
        ids = self._ids(named, count, generator)
        dead = (ids < 0) | (torch.rand(ids.shape, generator=generator) < self.inactive)
        garbage = torch.tensor(garbage_ids(fleet.num_experts))
        ids[dead] = garbage[(torch.arange(int(dead.sum())) + self.rotation) % len(garbage)]
        weights[dead] = float("nan")
        hidden, ids, weights = hidden.to(device), ids.int().to(device), weights.to(device)
        each = zip(*(t.split(self.tokens) for t in (hidden, ids, weights)), strict=True)
        return [(h.clone(), Routing(i.clone(), w.clone())) for h, i, w in each]

    def _ids(self, named: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`[T, K]` int64 of the experts `named`; -1 where a token has no further one."""
        if self.duplicates:
            return named[torch.randint(len(named), (count, self.top_k), generator=generator)]
        distinct = named[torch.rand(count, len(named), generator=generator).argsort(-1)]
        return functional.pad(distinct, (0, max(0, self.top_k - len(named))), value=-1)[:, : self.top_k]


def _kept_by(rounding: Format, hidden: Tensor) -> Tensor:
    """`hidden` as it is if `rounding` keeps every value; else as FP8 with a float scale keeps it.

    The first number of each tile is 3.5, 448 / 128, so that the scale is 1 / 128 and every whole number up to 3 a code;
    and the tile is doubled 0, 1 or 2 times, no two neighbours alike. Raises DispatchError where that is rounded too.
    """
    if torch.equal(rounding.round_trip(hidden), hidden):
        return hidden
    if isinstance(rounding, FP8):
        rows, columns = hidden.shape
        _, tile = rounding.granularity.tile(rows, columns)
        hidden[:, ::tile] = 3.5
        doubled = torch.arange(rows).unsqueeze(1) + torch.arange(columns) // tile
        hidden = hidden * (2.0 ** (doubled % 3)).to(hidden.dtype)
    if not torch.equal(rounding.round_trip(hidden), hidden):
        raise DispatchError(
            f"the fleet rounds tokens to {rounding!r}, but the kit has tokens that are kept by Plain(), by FP8 with "
            "scales of parts of a row, and by formats whose scales are powers of two"
        )
    return hidden


def traffic_of(
    fleet: Fleet[object],
    *,
    hidden_sizes: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
    max_tokens: int,
    duplicate_ids: bool,
) -> Iterator[Traffic]:
    """What every fleet is given: uneven ranks with an empty one, one hot rank, nothing at all, every row that fits."""
    ranks, most = fleet.num_ranks, max_tokens
    uneven = tuple(min(most, (3, 0, most, 1)[rank % 4]) for rank in range(ranks))
    base = Traffic(tokens=uneven, top_k=min(3, fleet.num_experts), hidden_size=hidden_sizes[0], dtype=dtypes[0])
    yield base
    yield from (replace(base, hidden_size=size, seed=1) for size in hidden_sizes[1:])
    yield from (replace(base, dtype=dtype, seed=2) for dtype in dtypes[1:])
    yield from (replace(base, hot=hot, seed=3) for hot in {0: 0, ranks - 1: 0})
    yield replace(base, tokens=(0,) * ranks)
    yield replace(base, tokens=(0,) * (ranks - 1) + (most,), seed=4)
    yield replace(base, inactive=1.0)
    yield replace(base, tokens=(most,) * ranks, top_k=min(8, fleet.num_experts), inactive=0.0, seed=5)
    yield replace(base, top_k=1, inactive=0.0, seed=6)
    if duplicate_ids:
        yield replace(base, duplicates=True, seed=7)
