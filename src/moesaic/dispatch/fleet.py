"""Fleet: the ranks that share the experts of a layer, as far as this process plays them.

One process of torch.distributed plays one rank; `Loopback` plays all of them. What is said of a fleet is what the
dispatcher conformance kit runs, so a real dispatcher is put into one with `OneRank`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, final

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, Routing
from moesaic.checks import flag, instance, whole_number
from moesaic.dispatch.base import Dispatcher, Receipt
from moesaic.dispatch.placement import even_share
from moesaic.dispatch.recorded import over_ranks
from moesaic.errors import DispatchError
from moesaic.layouts import Layout
from moesaic.quant import Format, Plain

Call: TypeAlias = tuple[Tensor, Routing]
"""What one rank hands in: hidden states `[T, H]` and their routing with ids of the whole model."""


@dataclass(frozen=True, kw_only=True)
class Fleet(ABC, Generic[Receipt]):
    """`num_experts` E of the model on `num_ranks` ranks, in order and as evenly as possible.

    With 10 experts on 4 ranks the first two ranks hold 3 and the others 2: they start at 0, 3, 6 and 8.
    `weight_on_input`: the router weight is multiplied into the rows on their way (Llama-4). Only for a layout without
    routing; where rows carry their routing the experts multiply.
    """

    num_experts: int
    num_ranks: int
    weight_on_input: bool = False

    def __post_init__(self) -> None:
        for name in ("num_experts", "num_ranks"):
            object.__setattr__(self, name, whole_number("Fleet", name, getattr(self, name), DispatchError))
        if self.num_ranks > self.num_experts:
            raise DispatchError(
                f"{self.num_ranks} ranks share {self.num_experts} experts, but each needs at least one: use fewer ranks"
            )
        flag("Fleet", "weight_on_input", self.weight_on_input, DispatchError)
        if self.weight_on_input and self.layout.has_routing:
            raise DispatchError(
                f"weight_on_input with {self.layout!r}, whose rows carry their routing: the experts multiply, so bind "
                "their problem with weight_on_input=True instead"
            )

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How the rows lie that each rank's experts get."""

    @property
    @abstractmethod
    def played(self) -> tuple[int, ...]:
        """The ranks that this process plays, ascending."""

    @property
    def rounding(self) -> Format:
        """What tokens are rounded to on their way to the experts, the same on every rank."""
        return Plain()

    def experts(self, rank: int) -> range:
        """The model's experts that `rank` holds; its local ids count from the first of them."""
        number = whole_number("Fleet", "rank", rank, DispatchError, at_least=0)
        if number >= self.num_ranks:
            raise DispatchError(f"rank {number} of {self.num_ranks}: ranks count from 0")
        return even_share(self.num_experts, self.num_ranks, number)

    @abstractmethod
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, Receipt]]:
        """Batch and receipt of every rank played, given what every rank of the fleet hands in."""

    @abstractmethod
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[Receipt]) -> list[Tensor]:
        """The output `[T, H]` of every rank played, given the rows that its experts made of its batch."""

    def checked(self, calls: Sequence[Call]) -> None:
        """Raise DispatchError unless there is one call for every rank."""
        if len(calls) != self.num_ranks:
            raise DispatchError(f"{len(calls)} calls for {self.num_ranks} ranks: give one for each, empty ones too")


@final
@dataclass(frozen=True, kw_only=True)
class OneRank(Fleet[Any]):
    """A dispatcher of rank `rank`, one of `num_ranks` processes that run the same program; `Local()` is rank 0 of 1."""

    dispatcher: Dispatcher[Any]
    rank: int = 0

    def __post_init__(self) -> None:
        instance("OneRank", "dispatcher", self.dispatcher, Dispatcher, DispatchError, example="Local()")
        super().__post_init__()
        held = len(self.experts(self.rank))
        reached = self.dispatcher.num_experts(held)
        if reached != self.num_experts:
            raise DispatchError(
                f"{self.dispatcher.__class__.__name__} reaches {reached} experts from a rank with {held}, but the "
                f"fleet has {self.num_experts}"
            )
        check_share(self.dispatcher, self.rank, self.experts(self.rank))

    @property
    @override
    def layout(self) -> Layout:
        return self.dispatcher.layout

    @property
    @override
    def played(self) -> tuple[int, ...]:
        return (self.rank,)

    @property
    @override
    def rounding(self) -> Format:
        return self.dispatcher.rounding

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, Any]]:
        self.checked(calls)
        return [self.dispatcher.dispatch(*calls[self.rank])]

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[Any]) -> list[Tensor]:
        return [self.dispatcher.combine(*pair) for pair in zip(rows, receipts, strict=True)]


def check_share(dispatcher: Dispatcher[Any], rank: int, experts: range) -> None:
    """Raise DispatchError for a dispatcher that is another rank's than `rank`, or does not hold `experts` in order.

    Its answers would be compared with those of other experts.
    """
    inner = over_ranks(dispatcher)
    if inner is None:
        return
    if inner.ranks.rank != rank:
        raise DispatchError(f"{inner.name} is rank {inner.ranks.rank}'s, but it was given as that of rank {rank}")
    held = inner.placement.experts[inner.share]
    if held != tuple(experts):
        raise DispatchError(
            f"{inner.name} places the experts {held} on rank {rank}, but a fleet has them in order, {experts.start} to "
            f"{experts.stop - 1} there: use Placement.contiguous"
        )
