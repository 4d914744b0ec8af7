"""One rank of a process group, as a process: `python -m tests.parallel.rank_process RANK FILE DIRECTORY`.

Two of them record, load, rebalance, and fail to; the second is killed in the end. Each line says what held.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from moesaic import Local, MoE, SwiGLU, bind
from moesaic.checkpoints import Unquantized, write_experts
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.balance import balance
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.recorded import Recorded
from moesaic.errors import CollectiveError, FleetError
from moesaic.parallel import load_experts, rebalance
from tests.dispatch.layers import NUM_EXPERTS, TOP_K, Given, calls, layer_problem, one_rank
from tests.parallel.rank_layers import BEFORE, build, same_bits, whole

HANDED = calls([6, 3])


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def output_of(layer, rank):
    hidden, _ = HANDED[rank]
    return layer(hidden, torch.zeros(len(hidden), NUM_EXPERTS))


def compiled_counts():
    """A compiled layer counts in its one graph, whatever makes the code of it."""
    recorder, (hidden, routing) = LoadRecorder(2, NUM_EXPERTS), HANDED[0]
    layer = MoE(Given(routing), Recorded(Local(), recorder, 1), bind(layer_problem(), whole()))
    run = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(hidden, torch.zeros(6, NUM_EXPERTS)), output_of(layer, 0))
    wanted = torch.bincount(routing.topk_ids[routing.topk_ids < NUM_EXPERTS], minlength=NUM_EXPERTS)
    found = recorder.read().counts
    assert torch.equal(found[1], 6 * wanted)
    assert not found[0].any()
    say("a compiled layer counts")


def loaded(ranks, directory):
    """Reads from a checkpoint that rank 0 wrote."""
    if ranks.rank == 0:
        write_experts(directory, {0: whole()}, Unquantized(), config={"num_experts": NUM_EXPERTS})
    dist.barrier()
    experts = load_experts(directory, 0, BEFORE, ranks, activation=SwiGLU(), top_k=TOP_K)
    recorder = LoadRecorder(1, NUM_EXPERTS)
    layer = MoE(Given(HANDED[ranks.rank][1]), Recorded(AllToAll(ranks, BEFORE), recorder, 0), experts)
    output = output_of(layer, ranks.rank)
    torch.testing.assert_close(output, one_rank(HANDED)[ranks.rank], rtol=1e-5, atol=1e-5)
    load = recorder.read_all(ranks).counts
    ids = torch.cat([routing.topk_ids.flatten() for _, routing in HANDED])
    assert torch.equal(load[0], torch.bincount(ids[ids < NUM_EXPERTS], minlength=NUM_EXPERTS))
    say("a loaded layer computes and counts what one rank does")
    return layer, load


def moved(ranks, layer, load):
    """Planned on what was counted; with a group of its own, and the layer serving between the steps."""
    (after,) = balance(load, 7, ranks.size)
    assert after != BEFORE
    old, seen = output_of(layer, ranks.rank), []

    def progress(done, of):
        seen.append(torch.equal(output_of(layer, ranks.rank), old))

    group = Ranks(dist.new_group(backend="gloo"), timeout=20.0)
    rebalance(layer, after, ranks=group, chunk_bytes=1000, progress=progress)
    assert len(seen) > 4
    assert all(seen)
    anew = build(ranks, after, whole(), HANDED[ranks.rank][1])
    assert same_bits(output_of(layer, ranks.rank), output_of(anew, ranks.rank))
    say("a rebalanced layer is one built anew")


def spoilt(ranks, layer):
    """A bit that changes on its way to rank 1."""
    move, old, experts = Ranks.point_to_point, output_of(layer, ranks.rank), layer.experts

    def corrupted(self, sent, got, step):
        move(self, sent, got, step)
        for tensor, _ in got:
            tensor[17] ^= ranks.rank  # on rank 1 only

    Ranks.point_to_point = corrupted
    try:
        rebalance(layer, BEFORE)
    except FleetError as fault:
        say(fault)
    finally:
        Ranks.point_to_point = move
    assert layer.experts is experts
    assert same_bits(output_of(layer, ranks.rank), old)


def killed(ranks, layer):
    """Rank 1 is killed on the way."""
    experts, dispatcher = layer.experts, layer.dispatcher

    def progress(done, of):
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        rebalance(layer, BEFORE, ranks=ranks, progress=progress)
    except CollectiveError as fault:
        assert layer.experts is experts
        assert layer.dispatcher is dispatcher
        say(fault)


def main():
    rank, file, directory = sys.argv[1:]
    torch.set_num_threads(1)
    start = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=2, timeout=start)
    try:
        ranks = Ranks.world(timeout=60.0)
        layer, load = loaded(ranks, Path(directory))
        if ranks.rank == 0:
            compiled_counts()
        moved(ranks, layer, load)
        spoilt(ranks, layer)
        killed(ranks, layer)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
