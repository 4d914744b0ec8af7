"""Arrangement: how tokens that arrived in buffers of fixed size are laid for the experts, and summed behind them.

Shapes depend on the buffers only and no value is read on the host, so all of it can be captured in a CUDA graph.
Dimensions: R rows of the buffers, K slots, L local experts, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, PaddedStandardBatch
from moesaic.layouts import Layout, PaddedStandard


@final
@dataclass(frozen=True, eq=False)
class RowPlaces:
    """Where the rows of each (token, slot) pair went.

    `places`: the pair's row of the batch, slabs one behind the other; -1 if it has none. `weights`: what its row is to
    be multiplied by; None if that is done. `lost`: rows with an active slot for which there was no room.
    """

    places: Int[Tensor, "R K"]
    weights: Float[Tensor, "R K"] | None
    lost: Bool[Tensor, " R"]


@dataclass(frozen=True)
class Arrangement(ABC):
    """One way to lay out what arrived. To add one, write `layout`, `arrange` and `partial_sums`."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How the experts find the rows."""

    def check(self, dtype: torch.dtype) -> None:  # noqa: B027 - what only moves rows takes any
        """Raise DispatchError for hidden states of a dtype that cannot be laid so."""

    @abstractmethod
    def arrange(self, arrived: PaddedStandardBatch, num_experts: int) -> tuple[Batch, RowPlaces | None]:
        """What arrived, in this layout for `num_experts` local experts, and what `partial_sums` needs."""

    @abstractmethod
    def partial_sums(self, rows: Tensor, places: RowPlaces | None) -> Float[Tensor, "R H"]:
        """This rank's contribution to each token, in the places in which the tokens arrived, given the experts' rows.

        Undefined for a token without an active slot here. In float32 where they are summed here, and in the dtype of
        `rows` where the experts have summed, and so rounded, already.
        """


@final
@dataclass(frozen=True)
class AsArrived(Arrangement):
    """PaddedStandard: the experts weight and sum."""

    @property
    @override
    def layout(self) -> Layout:
        return PaddedStandard()

    @override
    def arrange(self, arrived: PaddedStandardBatch, num_experts: int) -> tuple[Batch, None]:
        return arrived, None

    @override
    def partial_sums(self, rows: Tensor, places: RowPlaces | None) -> Tensor:
        return rows
