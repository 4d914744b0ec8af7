"""OverRanks: what dispatchers of torch.distributed share: ranks, a placement, and the sum of the partial sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, Routing
from moesaic.checks import instance
from moesaic.dispatch.agreement import agree, versions
from moesaic.dispatch.announcement import identity
from moesaic.dispatch.base import Dispatcher
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.partial_sums import SumReceipt, sum_back
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.slot_tables import SlotTables
from moesaic.errors import DispatchError
from moesaic.layouts import Layout, Standard


@dataclass(frozen=True)
class OverRanks(Dispatcher[SumReceipt]):
    """`ranks` share the experts as `placement` says; each rank's experts weight and sum, and its sums travel back.

    Raises DispatchError, on every rank, unless the placement is for that many ranks.
    """

    ranks: Ranks
    placement: Placement
    tables: SlotTables = field(init=False, repr=False, compare=False)
    identity: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        instance(self.name, "ranks", self.ranks, Ranks, DispatchError, example="Ranks.world()")
        example = "Placement.contiguous(8, 2)"
        instance(self.name, "placement", self.placement, Placement, DispatchError, example=example)
        if self.placement.num_ranks != self.ranks.size:
            raise DispatchError(
                f"{self.name}: the placement is for {self.placement.num_ranks} ranks, but the group has "
                f"{self.ranks.size}: start as many processes, or place the experts for {self.ranks.size}"
            )
        object.__setattr__(self, "tables", self.placement.tables(self.ranks.device))
        object.__setattr__(self, "identity", identity(f"{self.name} {self.placement!r}"))

    @property
    def name(self) -> str:
        """As errors call it."""
        return self.__class__.__name__

    @property
    @override
    def layout(self) -> Layout:
        """`Standard()`: the host knows how many rows come, so each is a token."""
        return Standard()

    @property
    @override
    def synchronises(self) -> bool:
        """True: once in a dispatch, for the number of rows; not in `combine`."""
        return True

    @override
    def num_experts(self, num_local: int) -> int:
        """Raises DispatchError if this rank does not hold `num_local` experts."""
        held = self._held()
        if num_local != held:
            raise DispatchError(
                f"{self.name}: the placement gives rank {self.ranks.rank} {held} experts, but the problem is for "
                f"{num_local}"
            )
        return self.placement.num_experts

    @override
    def agree(self, num_local: int, facts: Mapping[str, str]) -> None:
        """Raises DispatchError on every rank, with the facts that differ; CollectiveError if one is not heard from."""
        held = self._held()
        own = {
            "dispatcher": self.name,
            "placement": repr(self.placement),
            "local experts": "as placed" if num_local == held else f"{num_local} instead of the {held} placed there",
            **versions(),
        }
        agree(self.ranks, {**own, **facts}, owner=self.name)

    @abstractmethod
    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[Batch, SumReceipt]: ...

    @override
    def combine(self, rows: Tensor, receipt: SumReceipt) -> Tensor:
        return sum_back(self.ranks, rows, receipt, owner=self.name)

    def _held(self) -> int:
        return len(self.placement.experts[self.ranks.rank])
