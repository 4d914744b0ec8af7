"""OverRanks: what dispatchers of torch.distributed share: ranks, a placement, and what is compared between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, Routing
from moesaic.checks import instance, whole_number
from moesaic.dispatch.agreement import agree, versions
from moesaic.dispatch.announcement import identity
from moesaic.dispatch.base import Dispatcher, Receipt
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.slot_tables import SlotTables
from moesaic.dispatch.wire import WIRES
from moesaic.errors import DispatchError
from moesaic.quant import Format, Plain


@dataclass(frozen=True)
class OverRanks(Dispatcher[Receipt], Generic[Receipt]):
    """`ranks` share the experts as `placement` says; each rank's contributions to a token travel back as one row.

    With `shards` S, so many ranks in a row hold the same experts, each an S-th of their intermediate size: rank r has
    what the placement gives to r // S. Raises DispatchError, on every rank, unless the placement is for N / S ranks.
    `wire`: as what tokens travel, `Plain()` or `FP8(PerGroup(128))`: the sender rounds each once, and the receiver
    reads it back into the dtype of the tokens. Sums travel back as without.
    """

    ranks: Ranks
    placement: Placement
    shards: int = field(default=1, kw_only=True)
    wire: Format = field(default=Plain(), kw_only=True)
    tables: SlotTables = field(init=False, repr=False, compare=False)
    identity: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        instance(self.name, "ranks", self.ranks, Ranks, DispatchError, example="Ranks.world()")
        example = "Placement.contiguous(8, 2)"
        instance(self.name, "placement", self.placement, Placement, DispatchError, example=example)
        object.__setattr__(self, "shards", whole_number(self.name, "shards", self.shards, DispatchError))
        if self.wire not in WIRES:
            known = " or ".join(map(repr, WIRES))
            raise DispatchError(f"{self.name}.wire is {self.wire!r}, but tokens travel as {known}: give one of these")
        needed = self.placement.num_ranks * self.shards
        if needed != self.ranks.size:
            shared = "" if self.shards == 1 else f", each {self.shards} times"
            raise DispatchError(
                f"{self.name}: the placement is for {self.placement.num_ranks} ranks{shared}, but the group has "
                f"{self.ranks.size}: start {needed} processes, or place the experts for another number"
            )
        object.__setattr__(self, "tables", self.placement.tables(self.ranks.device))
        object.__setattr__(self, "identity", identity(f"{self.name} {self.placement!r} {self.shards}"))

    @property
    def name(self) -> str:
        """As errors call it."""
        return self.__class__.__name__

    @property
    def share(self) -> int:
        """Which of the placement's ranks this one is, alone or as one of its shards."""
        return self.ranks.rank // self.shards

    @property
    @override
    def rounding(self) -> Format:
        return self.wire

    @override
    def num_experts(self, num_local: int) -> int:
        """Raises DispatchError if this rank does not hold `num_local` experts."""
        held = len(self.placement.experts[self.share])
        if num_local != held:
            raise DispatchError(
                f"{self.name}: the placement gives rank {self.ranks.rank} {held} experts, but the problem is for "
                f"{num_local}"
            )
        return self.placement.num_experts

    def told(self) -> dict[str, str]:
        """What else the ranks must be told alike; a dispatcher with further fields adds them."""
        return {}

    @override
    def agree(self, num_local: int, facts: Mapping[str, str]) -> None:
        """Raises DispatchError on every rank, with the facts that differ; CollectiveError if one is not heard from."""
        held = len(self.placement.experts[self.share])
        own = {
            "dispatcher": self.name,
            "placement": repr(self.placement),
            "shards": str(self.shards),
            "wire": repr(self.wire),
            "local experts": "as placed" if num_local == held else f"{num_local} instead of the {held} placed there",
            **self.told(),
            **versions(),
        }
        agree(self.ranks, {**own, **facts}, owner=self.name)

    @abstractmethod
    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[Batch, Receipt]: ...
