"""The dispatcher kit on the ranks of a benchmark."""

from __future__ import annotations

from typing import Any

import torch
from dispatching.subjects import DISPATCHERS, LOCAL, Sizes

from moesaic.conformance import DispatcherConformance
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError, FleetError

EXPERTS = 16
NEEDED = Sizes(max_tokens=8, hidden_size=2880, top_k=8, dtype=torch.float32)
"""What the kit's traffic needs of a window."""


def conform(name: str, ranks: Ranks) -> tuple[str, dict[str, Any]]:
    """("kit", how many checks the dispatcher passed), or ("not_run", why these ranks cannot have it).

    Raises Nonconformance for the first check that it does not pass. `local` is no way to share experts, so on several
    ranks it has nothing to pass.
    """
    if name == LOCAL and ranks.size > 1:
        return "kit", {"dispatcher": name, "checks": 0}
    try:
        dispatcher = DISPATCHERS[name](ranks, NEEDED)(Placement.contiguous(EXPERTS, ranks.size))
    except (DispatchError, FleetError) as fault:  # of what all ranks have in common, or the same on all
        return "not_run", {"dispatcher": name, "kit": True, "why": str(fault)}
    fleet = OneRank(num_experts=EXPERTS, num_ranks=ranks.size, rank=ranks.rank, dispatcher=dispatcher)
    kit = type("Kit", (DispatcherConformance,), {"fleet": fleet, "duplicate_ids": fleet.layout.has_routing})()
    number = 0
    for check, traffic in kit.trials():
        check.run(FleetSubject(fleet, torch.device(ranks.device)), traffic)
        number += 1
    return "kit", {"dispatcher": name, "checks": number}
