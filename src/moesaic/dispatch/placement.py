"""Placement: which rank holds which experts, replicas included.

Three names of an expert: *logical*, the model's, in `[0, E)`; *physical*, one of the S slots of all ranks, counted rank
after rank; *local*, the place among the slots of its rank. A logical expert has one slot or, as replicas, several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch
from torch import Tensor

from moesaic.checks import as_sequence, whole_number
from moesaic.dispatch.slot_tables import SlotTables
from moesaic.errors import DispatchError


def even_share(total: int, parts: int, part: int) -> range:
    """What falls to `part` of `parts` when `0 .. total - 1` are shared out in order, the first parts getting one more.

    With 10 on 4 the shares start at 0, 3, 6 and 8.
    """
    share, more = divmod(total, parts)
    start = part * share + min(part, more)
    return range(start, start + share + (part < more))


@final
@dataclass(frozen=True)
class Placement:
    """`num_experts` E of the model; `experts[rank][local id]` is the logical expert in that slot.

    Any order and any number of slots a rank, but at least one; every expert has a slot, and no two on one rank, where a
    replica would take memory and no load. Raises DispatchError that names the expert and the rank otherwise. Equal
    placements are equal values with one hash and one repr, which evaluates.
    """

    num_experts: int
    experts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        number = whole_number("Placement", "num_experts", self.num_experts, DispatchError)
        object.__setattr__(self, "num_experts", number)
        ranks = as_sequence(self.experts)
        if not ranks:
            raise DispatchError(f"Placement.experts is {self.experts!r}, but it needs the experts of each rank")
        held = tuple(_checked(rank, experts, number) for rank, experts in enumerate(ranks))
        object.__setattr__(self, "experts", held)
        missing = sorted(set(range(number)) - {expert for experts in held for expert in experts})
        if missing:
            raise DispatchError(
                f"expert {missing[0]} of {number} has no slot on any of {len(held)} ranks"
                f" ({len(missing)} have none): tokens routed there could be computed nowhere"
            )

    @classmethod
    def contiguous(cls, num_experts: int, num_ranks: int) -> Placement:
        """Every expert once, in order, as evenly as possible: the first ranks hold one more. No rank may be empty."""
        num_experts = whole_number("Placement", "num_experts", num_experts, DispatchError)
        num_ranks = whole_number("Placement", "num_ranks", num_ranks, DispatchError)
        if num_ranks > num_experts:
            raise DispatchError(
                f"{num_ranks} ranks share {num_experts} experts, but each needs at least one: use fewer ranks"
            )
        return cls(num_experts, tuple(tuple(even_share(num_experts, num_ranks, rank)) for rank in range(num_ranks)))

    @classmethod
    def from_slots(cls, num_experts: int, num_ranks: int, slots: Sequence[int] | Tensor) -> Placement:
        """The placement whose physical slot s holds the logical expert `slots[s]`; ranks own equal runs of slots.

        As EPLB's `physical_to_logical_map` has for one layer, a tensor too. Raises DispatchError if the ranks do not
        divide the slots.
        """
        found = as_sequence(slots)
        if found is None:
            raise DispatchError(f"Placement.from_slots.slots is {slots!r}, but it needs the expert of each slot")
        num_experts = whole_number("Placement", "num_experts", num_experts, DispatchError)
        num_ranks = whole_number("Placement", "num_ranks", num_ranks, DispatchError)
        per_rank, rest = divmod(len(found), num_ranks)
        if rest:
            raise DispatchError(f"{len(found)} slots on {num_ranks} ranks: ranks of equal size need a multiple")
        runs = [found[rank * per_rank : (rank + 1) * per_rank] for rank in range(num_ranks)]
        return cls(num_experts, tuple(_checked(rank, run, num_experts) for rank, run in enumerate(runs)))

    @property
    def num_ranks(self) -> int:
        """N."""
        return len(self.experts)

    @property
    def num_slots(self) -> int:
        """S, the physical experts: E and one for each further replica."""
        return sum(map(len, self.experts))

    @property
    def first_slots(self) -> tuple[int, ...]:
        """The physical slot of each rank's local expert 0, and S behind the last rank: N + 1 numbers."""
        return tuple(accumulate(map(len, self.experts), initial=0))

    @property
    def replicas(self) -> tuple[int, ...]:
        """How many slots each logical expert has; at least one, at most N."""
        count = Counter(expert for experts in self.experts for expert in experts)
        return tuple(count[expert] for expert in range(self.num_experts))

    @property
    def is_contiguous(self) -> bool:
        """Whether every expert has one slot and slot s holds expert s, however many each rank has."""
        return [expert for experts in self.experts for expert in experts] == list(range(self.num_experts))

    def slots_of(self, expert: int) -> tuple[int, ...]:
        """The physical slots of a logical expert, ascending, so in the order of ranks."""
        expert = whole_number("Placement.slots_of", "expert", expert, DispatchError, at_least=0)
        if expert >= self.num_experts:
            raise DispatchError(f"expert {expert} of {self.num_experts}: experts count from 0")
        pairs = zip(self.first_slots, self.experts, strict=False)
        return tuple(first + experts.index(expert) for first, experts in pairs if expert in experts)

    def tables(self, device: torch.device | str = "cpu") -> SlotTables:
        """The same as tensors on `device`, of one width for all placements of E experts in S slots on N ranks.

        Make them once, not in each call: they are copied from the host.
        """
        width = min(self.num_ranks, self.num_slots - self.num_experts + 1)
        rows = [self.slots_of(expert) for expert in range(self.num_experts)]
        places = [(rank, local) for rank, experts in enumerate(self.experts) for local in range(len(experts))]
        ranks, local_ids = zip(*places, strict=True)

        def table(values: object) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        padded = [[*row, *[-1] * (width - len(row))] for row in rows]
        return SlotTables(table(padded), table(self.replicas), table(ranks), table(local_ids))


def _checked(rank: int, experts: object, num_experts: int) -> tuple[int, ...]:
    """The logical experts of one rank as plain ints."""
    found = as_sequence(experts)
    if not found:
        raise DispatchError(f"rank {rank} holds {experts!r}, but it needs a tuple of at least one expert")
    held = tuple(whole_number(f"rank {rank}", "expert", expert, DispatchError, at_least=0) for expert in found)
    if max(held) >= num_experts:
        raise DispatchError(f"rank {rank} holds expert {max(held)}, but the model has {num_experts}, from 0")
    twice = [expert for expert, count in Counter(held).items() if count > 1]
    if twice:
        raise DispatchError(
            f"rank {rank} holds expert {twice[0]} {held.count(twice[0])} times: give its other replicas to other ranks"
        )
    return held
