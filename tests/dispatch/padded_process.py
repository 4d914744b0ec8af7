"""One rank as a process over gloo: `python -m tests.dispatch.padded_process RANK SIZE WHERE`.

A part of the kit for each padded dispatcher, a layer with replicas against one rank, and a window that cannot be.
"""

import gc
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from moesaic import MoE, bind
from moesaic.conformance import DispatcherConformance
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.by_expert import GroupedByExpert
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.open_window import open_window
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.errors import FleetError
from moesaic.quant import FP8, PerGroup
from tests.dispatch.layers import Given, calls, layer_problem, local_weights, one_rank
from tests.dispatch.some_trials import once


def conform(make, ranks):
    """Every check of the kit once; then a layer."""
    whole, count = Placement.contiguous(10, ranks.size), 0
    fleet = OneRank(num_experts=10, num_ranks=ranks.size, rank=ranks.rank, dispatcher=make(whole))
    sizes = {"fleet": fleet, "hidden_sizes": (65,), "duplicate_ids": False}
    kit = type("Kit", (DispatcherConformance,), sizes)()
    for check, traffic in once(kit.trials()):
        check.run(FleetSubject(fleet, torch.device("cpu")), traffic)
        count += 1
    placement = Placement(5, ((4, 0, 2), (1, 4, 3), (3, 0))[: ranks.size])
    dispatcher, handed = make(placement), calls([3, 0, 5][: ranks.size])
    hidden, routing = handed[ranks.rank]
    problem = layer_problem(len(placement.experts[ranks.rank]), layout=dispatcher.layout)
    experts = bind(problem, local_weights(placement, ranks.rank))
    output = MoE(Given(routing), dispatcher, experts)(hidden, torch.zeros(len(hidden), 5))
    rounded = [(dispatcher.rounding.round_trip(tokens), route) for tokens, route in handed]
    torch.testing.assert_close(output, one_rank(rounded)[ranks.rank], rtol=1e-5, atol=1e-5)
    return count


def main(rank, size, where):
    """All of them over one group."""
    start = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{where}/init", rank=rank, world_size=size, timeout=start)
    try:
        ranks = Ranks.world(timeout=60.0)
        count = conform(lambda placement: PaddedAllToAll(ranks, placement, 8), ranks)
        count += conform(lambda placement: PaddedAllToAll(ranks, placement, 8, GroupedByExpert(4)), ranks)
        count += conform(lambda placement: LowLatency(ranks, placement, 8), ranks)
        coded = {"wire": FP8(PerGroup(128))}
        count += conform(lambda placement: PaddedAllToAll(ranks, placement, 8, **coded), ranks)
        count += conform(lambda placement: AllToAll(ranks, placement, **coded), ranks)
        try:
            open_window(ranks, max_tokens=8, hidden_size=16, top_k=2)
        except FleetError as fault:
            sys.stdout.write(f"{fault}\n")
        sys.stdout.write(f"{count} checks passed\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    gc.collect()  # the kits' classes are cycles that hold the group, whose threads have to end before Python does
