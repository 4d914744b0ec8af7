"""SlotTables: a placement as tensors on a device, and the choice among the replicas of an expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class SlotTables:
    """What `Placement.tables` makes: int32 tensors on one device, which nothing here reads on the host.

    `slots_of`: the physical slots of each logical expert, ascending, padded with -1; the width W depends on E, S and N
    only, so another placement of that size has tables of the same shapes and can be copied into these under a graph.
    `replicas`: how many of a row count. `ranks` and `local_ids`: where each slot is.
    """

    slots_of: Int[Tensor, "E W"]
    replicas: Int[Tensor, " E"]
    ranks: Int[Tensor, " S"]
    local_ids: Int[Tensor, " S"]

    def slots(self, topk_ids: Int[Tensor, "T K"], rank: int = 0) -> Int[Tensor, "T K"]:
        """The physical slot that computes each (token, slot) pair of `rank`, int32; -1 for an id outside `[0, E)`.

        Token t of rank r goes to replica `(t + r) mod replicas`: without communication or state, and the same in every
        run. Consecutive tokens of an expert are spread over its replicas with a difference of at most one, and ranks
        begin with different replicas, so that batches of one token are spread as well.
        """
        active = (topk_ids >= 0) & (topk_ids < len(self.replicas))
        expert = topk_ids.where(active, 0).long()
        token = torch.arange(rank, rank + len(topk_ids), device=topk_ids.device).unsqueeze(-1)
        return self.slots_of[expert, token % self.replicas[expert]].where(active, -1)

    def local(self, topk_ids: Int[Tensor, "T K"], rank: int = 0) -> tuple[Int[Tensor, "T K"], Int[Tensor, "T K"]]:
        """The rank, and the local id there, that computes each (token, slot) pair of `rank`; both -1 if inactive."""
        slots = self.slots(topk_ids, rank)
        active, known = slots >= 0, slots.clamp(min=0).long()
        return self.ranks[known].where(active, -1), self.local_ids[known].where(active, -1)
