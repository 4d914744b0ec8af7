"""GroupedByExpert and SlabPerExpert: one row for each (token, slot) pair of this rank, in the order of experts.

Pairs of an expert lie in the order of tokens and slots, so the order is the same in every run.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch
from moesaic.checks import flag, whole_number
from moesaic.dispatch.arrangement import Arrangement, RowPlaces
from moesaic.dispatch.row_moves import spread, summed
from moesaic.errors import DispatchError
from moesaic.layouts import BatchedExperts, GroupedContiguous, Layout


@final
@dataclass(frozen=True, eq=False)
class _Pairs:
    """Of each pair its local expert, whether it has one, and its place among that expert's; pairs of each expert."""

    expert: Int[Tensor, "R K"]
    active: Bool[Tensor, "R K"]
    inside: Int[Tensor, "R K"]
    counts: Int[Tensor, " L"]

    @classmethod
    def of(cls, ids: Tensor, num_experts: int) -> _Pairs:
        active = (ids >= 0) & (ids < num_experts)
        key = ids.where(active, num_experts).flatten().long()
        expert, order = key.sort(stable=True)
        starts = torch.searchsorted(expert, torch.arange(num_experts + 1, device=ids.device))
        number = torch.arange(len(key), device=ids.device)
        inside = torch.empty_like(key).scatter_(0, order, number - starts[expert])
        return cls(ids.where(active, 0).long(), active, inside.view(ids.shape), starts.diff())


@dataclass(frozen=True, kw_only=True)
class ByExpert(Arrangement):
    """`weight_on_input`: the router weight is multiplied into the rows here, since the experts do not see it."""

    weight_on_input: bool = False

    def __post_init__(self) -> None:
        flag(self.__class__.__name__, "weight_on_input", self.weight_on_input, DispatchError)

    @override
    def check(self, dtype: torch.dtype) -> None:
        if dtype.itemsize == 1:
            raise DispatchError(
                f"hidden_states is {dtype}, in which nothing is multiplied or summed, so {self.__class__.__name__} "
                "cannot lay it by expert: convert it, or send it as codes with wire=FP8(PerGroup(128))"
            )

    @override
    def arrange(self, arrived: PaddedStandardBatch, num_experts: int) -> tuple[Batch, RowPlaces]:
        routing = arrived.routing
        pairs = _Pairs.of(routing.topk_ids, num_experts)
        first, counts, size = self._room(pairs.counts, *routing.topk_ids.shape)
        fits = pairs.active & (pairs.inside < counts[pairs.expert])
        places = (first[pairs.expert] + pairs.inside).where(fits, -1).int()
        lost = (pairs.active & ~fits).any(1)
        on_input = routing.topk_weights if self.weight_on_input else None
        rows = spread(arrived.rows, places, on_input, size)
        later = None if self.weight_on_input else routing.topk_weights
        return self._batch(rows, first, counts), RowPlaces(places, later, lost)

    @override
    def partial_sums(self, rows: Tensor, places: RowPlaces | None) -> Tensor:
        if places is None:
            raise DispatchError(f"the receipt of another dispatcher was given to {self!r}: give that of its dispatch")
        return summed(rows.reshape(-1, rows.shape[-1]), places.places, places.weights, places.lost)

    @abstractmethod
    def _room(self, counts: Tensor, num_rows: int, top_k: int) -> tuple[Tensor, Tensor, int]:
        """Each expert's first row, how many of its `counts` pairs have room there, and the number of rows."""

    @abstractmethod
    def _batch(self, rows: Tensor, first: Tensor, counts: Tensor) -> Batch:
        """The rows as the experts take them."""


@final
@dataclass(frozen=True)
class GroupedByExpert(ByExpert):
    """GroupedContiguous with gaps, for many tokens.

    R * min(K, L) + (alignment - 1) * L rows, rounded up: enough for every routing, unless K > L and tokens name an
    expert twice.
    """

    alignment: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        alignment = whole_number("GroupedByExpert", "alignment", self.alignment, DispatchError)
        object.__setattr__(self, "alignment", alignment)

    @property
    @override
    def layout(self) -> Layout:
        return GroupedContiguous(self.alignment)

    @override
    def _room(self, counts: Tensor, num_rows: int, top_k: int) -> tuple[Tensor, Tensor, int]:
        experts, unit = len(counts), self.alignment
        size = -(-(num_rows * min(top_k, experts) + (unit - 1) * experts) // unit) * unit
        taken = (counts + (unit - 1)) // unit * unit
        first = (taken.cumsum(0) - taken).clamp(max=size)
        return first, torch.minimum(counts, size - first), size

    @override
    def _batch(self, rows: Tensor, first: Tensor, counts: Tensor) -> Batch:
        return GroupedBatch(rows, first.int(), counts.int(), self.alignment)


@final
@dataclass(frozen=True)
class SlabPerExpert(ByExpert):
    """BatchedExperts with a capacity of R rows, for few tokens: enough unless a token names an expert twice."""

    @property
    @override
    def layout(self) -> Layout:
        return BatchedExperts()

    @override
    def _room(self, counts: Tensor, num_rows: int, top_k: int) -> tuple[Tensor, Tensor, int]:
        first = torch.arange(len(counts), device=counts.device) * num_rows
        return first, counts.clamp(max=num_rows), len(counts) * num_rows

    @override
    def _batch(self, rows: Tensor, first: Tensor, counts: Tensor) -> Batch:
        return BatchedBatch(rows.view(len(counts), -1, rows.shape[-1]), counts.int())
