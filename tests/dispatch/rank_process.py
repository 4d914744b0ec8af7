"""One rank of a process group, as a process: `python -m tests.dispatch.rank_process SCENARIOS RANK SIZE FILE`.

It runs the scenarios, of which the last may end it with the error that a user's program would end with.
"""

import dataclasses
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from moesaic import MoE, Reference, SwiGLU, bind
from moesaic.conformance import DispatcherConformance
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError
from tests.dispatch.layers import Given, calls, layer_problem, local_weights, one_rank
from tests.dispatch.some_trials import part

TIMEOUT = 3.0
"""Seconds, in the scenarios where a rank does not answer."""


def conform(ranks):
    """A part of the kit, which runs whole in threads; then a layer with replicas, against one rank."""
    count = 0
    for kind in (AllToAll, AllGather):
        fleet = OneRank(
            num_experts=10,
            num_ranks=ranks.size,
            rank=ranks.rank,
            dispatcher=kind(ranks, Placement.contiguous(10, ranks.size)),
        )
        kit = type("Kit", (DispatcherConformance,), {"fleet": fleet, "hidden_sizes": (65,)})()
        for check, traffic in part(kit.trials(), 5):
            check.run(FleetSubject(fleet, torch.device("cpu")), traffic)
            count += 1
        placement = Placement(5, ((4, 0, 2), (1, 4, 3), (3, 0))[: ranks.size])
        handed = calls([3, 0, 5][: ranks.size], num_experts=5)
        hidden, routing = handed[ranks.rank]
        experts = bind(layer_problem(len(placement.experts[ranks.rank])), local_weights(placement, ranks.rank))
        output = MoE(Given(routing), kind(ranks, placement), experts)(hidden, torch.zeros(len(hidden), 5))
        torch.testing.assert_close(output, one_rank(handed)[ranks.rank], rtol=1e-5, atol=1e-5)
    sys.stdout.write(f"{count} checks passed\n")


def differ(ranks):
    """Rank 1 is told another limit than the others."""
    placement = Placement.contiguous(5, ranks.size)
    held = len(placement.experts[ranks.rank])
    problem = dataclasses.replace(layer_problem(held), activation=SwiGLU(limit=7.0 + ranks.rank))
    experts = bind(problem, local_weights(placement, ranks.rank), backends=(Reference(),))
    try:
        MoE(Given(None), AllToAll(ranks, placement), experts)
    except DispatchError as fault:
        sys.stdout.write(f"{fault}\n")  # and the group is as good as before


def killed(ranks):
    """Rank 1 is killed between two calls."""
    dispatcher = AllToAll(ranks, Placement.contiguous(5, ranks.size))
    tokens = calls([2] * ranks.size, num_experts=5)[ranks.rank]
    for turn in range(2):
        batch, receipt = dispatcher.dispatch(*tokens)
        dispatcher.combine(batch.rows, receipt)
        if turn == 0 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def slow(ranks):
    """The experts of rank 1 take longer than the others wait."""
    dispatcher = AllGather(ranks, Placement.contiguous(5, ranks.size))
    batch, receipt = dispatcher.dispatch(*calls([2] * ranks.size, num_experts=5)[ranks.rank])
    if ranks.rank == 1:
        time.sleep(TIMEOUT + 1.0)
    dispatcher.combine(batch.rows, receipt)


SCENARIOS = {each.__name__: each for each in (conform, differ, killed, slow)}


if __name__ == "__main__":
    names, rank, size, file = sys.argv[1:]
    torch.set_num_threads(1)
    start = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size), timeout=start)
    try:
        for name in names.split(","):
            SCENARIOS[name](Ranks.world(timeout=TIMEOUT if name in {"killed", "slow"} else 60.0))
    finally:
        dist.destroy_process_group()
