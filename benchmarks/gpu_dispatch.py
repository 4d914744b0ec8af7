"""Every dispatcher on the GPUs of one host: the same answer as one rank, under CUDA graphs, and how long it takes.

    torchrun --nproc-per-node 2 benchmarks/gpu_dispatch.py [--shapes qwen3_30b,dsv3] [--tokens 1,64] [--out FILE.json]

First each dispatcher is put through the dispatcher kit. Then, for each shape and number of tokens a rank, a whole layer
is compared with one rank that holds all experts, captured, and replayed with other tokens and another routing, which
must give the bits of a call that was not captured. Then dispatch, combine and the layer are timed by replays of a graph
that holds several calls (without a graph where the dispatcher waits on the host): all ranks start a replay together, a
figure is that of the slowest rank, and the median of the rounds is taken. GB/s are of the rows that a rank sends to
others, each once for a rank that needs it, whatever a dispatcher sends beyond those. On a machine without CUDA it runs
a tiny shape over gloo, for trying the program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moesaic import (
    Dispatcher,
    Experts,
    ExpertWeights,
    Layout,
    Machine,
    Problem,
    Routing,
    Standard,
    StandardBatch,
    SwiGLU,
    bind,
)
from moesaic.conformance import DispatcherConformance
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.dispatch.all_gather import AllGather
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.arrangement import Arrangement, AsArrived
from moesaic.dispatch.by_expert import GroupedByExpert, SlabPerExpert
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.fleet import OneRank
from moesaic.dispatch.low_latency import LowLatency
from moesaic.dispatch.open_window import open_window
from moesaic.dispatch.padded_all_to_all import PaddedAllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.symmetric_memory import SymmetricMemory

SHAPES = {  # experts, slots, hidden, intermediate
    "qwen3_30b": (128, 8, 2048, 768),
    "dsv3": (256, 8, 7168, 2048),
    "tiny": (8, 2, 64, 32),
}
TOKENS = tuple(2**n for n in range(13))
SLABS_UP_TO = 128
"""Tokens a rank: slabs of every expert hold all of them."""
KIT = {"max_tokens": 8, "hidden_size": 2880, "top_k": 8, "dtype": torch.float32}
"""What the kit's traffic needs of a window."""

Make = Callable[[Ranks, Placement, "Sizes"], Dispatcher]


@dataclass(frozen=True)
class Sizes:
    """What a dispatcher is built for."""

    max_tokens: int
    hidden_size: int
    top_k: int
    dtype: torch.dtype


def symmetric(arrangement: Arrangement) -> Make:
    """Through a window of its own."""

    def make(ranks: Ranks, placement: Placement, sizes: Sizes) -> SymmetricMemory:
        window = open_window(ranks, arrangement=arrangement, **vars(sizes))
        return SymmetricMemory(ranks, placement, window, arrangement)

    return make


DISPATCHERS: dict[str, Make] = {
    "all_gather": lambda ranks, placement, _: AllGather(ranks, placement),
    "all_to_all": lambda ranks, placement, _: AllToAll(ranks, placement),
    "padded": lambda ranks, placement, sizes: PaddedAllToAll(ranks, placement, sizes.max_tokens),
    "padded_grouped": lambda ranks, placement, sizes: PaddedAllToAll(
        ranks, placement, sizes.max_tokens, GroupedByExpert(16)
    ),
    "low_latency": lambda ranks, placement, sizes: LowLatency(ranks, placement, sizes.max_tokens),
    "symmetric": symmetric(AsArrived()),
    "symmetric_grouped": symmetric(GroupedByExpert(16)),
    "symmetric_slabs": symmetric(SlabPerExpert()),
}


@dataclass(frozen=True)
class Job:
    """One shape on these ranks: `whole` has all experts; `held` are those of this rank."""

    ranks: Ranks
    placement: Placement
    whole: Experts
    held: ExpertWeights
    shape: str

    def experts(self, layout: Layout) -> Experts:
        """This rank's."""
        return bound(self.shape, self.held, layout)

    def call(self, tokens: int, seed: int) -> tuple[Tensor, Routing]:
        """Other tokens and another even routing on each rank."""
        experts, top_k, hidden, _ = SHAPES[self.shape]
        generator = torch.Generator(self.ranks.device).manual_seed(1000 * self.ranks.rank + seed)
        options = {"generator": generator, "device": self.ranks.device}
        weights, ids = torch.randn(tokens, experts, **options).softmax(-1).topk(top_k)
        rows = torch.randn(tokens, hidden, **options).to(self.whole.problem.dtype)
        return rows, Routing(ids.int(), weights / weights.sum(-1, keepdim=True))


def bound(shape: str, weights: ExpertWeights, layout: Layout) -> Experts:
    """Experts of one shape, by the backend that moesaic prefers."""
    _, top_k, hidden, inner = SHAPES[shape]
    problem = Problem(
        num_experts=len(weights.gate_up.data),
        top_k=top_k,
        hidden_size=hidden,
        intermediate_size=inner,
        activation=SwiGLU(),
        dtype=weights.gate_up.data.dtype,
        layout=layout,
    )
    return bind(problem, weights)


def layer(dispatcher: Dispatcher, experts: Experts, call: tuple[Tensor, Routing]) -> Tensor:
    """Dispatch, experts, combine."""
    batch, receipt = dispatcher.dispatch(*call)
    return dispatcher.combine(experts(batch), receipt)


def captured(work: Callable[[], Any], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `work`, compiled and warmed before, and what `work` returned inside."""
    work()
    work()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    # Other threads (NCCL's watchdog) may ask the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return graph, result


def slowest(values: list[float], ranks: Ranks) -> list[float]:
    """Of each round the slowest rank's."""
    mine = torch.tensor(values, device=ranks.device, dtype=torch.float64)
    return ranks.all_gather(mine, "the times").amax(0).tolist()


def timed(calls: list[Callable[[], Any]], ranks: Ranks, rounds: int, *, graph: bool) -> dict[str, float]:
    """Microseconds of one call."""
    cuda = torch.device(ranks.device).type == "cuda"
    run: Callable[[], Any] = lambda: [call() for call in calls]  # noqa: E731
    if graph:
        run = captured(run, torch.device(ranks.device))[0].replay
    else:
        run()
    taken = []
    for _ in range(rounds):
        dist.barrier()
        if cuda:
            torch.cuda.synchronize()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            run()
            events[1].record()
            torch.cuda.synchronize()
            taken.append(events[0].elapsed_time(events[1]) * 1e3)
        else:
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e6)
    each = sorted(value / len(calls) for value in slowest(taken, ranks))
    return {"median": round(statistics.median(each), 2), "lowest": round(each[0], 2), "highest": round(each[-1], 2)}


def compared(dispatcher: Dispatcher, experts: Experts, job: Job, tokens: int) -> dict[str, Any]:
    """The layer against one rank, and replays against calls that were not captured; `faults` is empty on all ranks."""
    call, faults = job.call(tokens, seed=1), []
    wanted = job.whole(StandardBatch(*call)).float()
    got = layer(dispatcher, experts, call)
    error = max(slowest([((got.float() - wanted).norm() / wanted.norm()).item()], job.ranks))
    if not error < 0.01:
        faults.append(f"an error of {error} against one rank")
    if not torch.equal(got, layer(dispatcher, experts, call)):
        faults.append("another answer the second time")
    graph = not dispatcher.synchronises and got.is_cuda
    if graph:
        rows, routing = call[0].clone(), Routing(call[1].topk_ids.clone(), call[1].topk_weights.clone())
        replayed, output = captured(lambda: layer(dispatcher, experts, (rows, routing)), rows.device)
        for seed in (2, 3, 1):
            other = job.call(tokens, seed)
            rows.copy_(other[0])
            routing.topk_ids.copy_(other[1].topk_ids)
            routing.topk_weights.copy_(other[1].topk_weights)
            replayed.replay()
            if not torch.equal(output, layer(dispatcher, experts, other)):
                faults.append(f"a replay with the tokens of seed {seed} that differs from a call")
    everyone: list[list[str]] = [[]] * job.ranks.size
    dist.all_gather_object(everyone, faults)
    told = [f"rank {rank}: {fault}" for rank, own in enumerate(everyone) for fault in own]
    return {"error": error, "graph": graph, "faults": told}


def measure(name: str, job: Job, tokens: int, rounds: int) -> dict[str, Any]:
    """One dispatcher at one number of tokens."""
    _, top_k, hidden, _ = SHAPES[job.shape]
    dtype = job.whole.problem.dtype
    dispatcher = DISPATCHERS[name](job.ranks, job.placement, Sizes(tokens, hidden, top_k, dtype))
    experts = job.experts(dispatcher.layout)
    row = {"shape": job.shape, "tokens": tokens, "dispatcher": name, "backend": experts.backend.name}
    row |= compared(dispatcher, experts, job, tokens)
    count = 20 if tokens <= 256 else 4
    calls = [job.call(tokens, seed) for seed in range(min(count, 4))]
    calls *= count // len(calls)
    delivered = [dispatcher.dispatch(*call) for call in calls[:4]]
    made = [(experts(batch), receipt) for batch, receipt in delivered] * (count // len(delivered))
    graph = row["graph"]
    works: dict[str, list[Callable[[], Any]]] = {
        "dispatch": [lambda c=c: dispatcher.dispatch(*c) for c in calls],
        "combine": [lambda m=m: dispatcher.combine(*m) for m in made],
        "layer": [lambda c=c: layer(dispatcher, experts, c) for c in calls],
    }
    row |= {part: timed(work, job.ranks, rounds, graph=graph) for part, work in works.items()}
    sent = statistics.mean(remote_rows(dispatcher, call) for call in calls) * hidden * dtype.itemsize
    sent = sum(slowest([sent], job.ranks))
    row["megabytes_sent"] = round(sent / 1e6, 3)
    for part in ("dispatch", "combine"):
        row[f"{part}_gigabytes_a_second"] = round(sent / row[part]["median"] / 1e3, 1)
    return row


def remote_rows(dispatcher: Any, call: tuple[Tensor, Routing]) -> float:
    """Pairs of a token and another rank that it needs."""
    rank, _ = dispatcher.tables.local(call[1].topk_ids, dispatcher.ranks.rank)
    others = [other for other in range(dispatcher.ranks.size) if other != dispatcher.ranks.rank]
    return float(sum((rank == other).any(1).sum() for other in others))


def conform(name: str, ranks: Ranks) -> dict[str, Any]:
    """The dispatcher kit on this fleet."""
    experts, size = 16, ranks.size
    dispatcher = DISPATCHERS[name](ranks, Placement.contiguous(experts, size), Sizes(**KIT))
    fleet = OneRank(num_experts=experts, num_ranks=size, rank=ranks.rank, dispatcher=dispatcher)
    kit = type("Kit", (DispatcherConformance,), {"fleet": fleet, "duplicate_ids": fleet.layout.has_routing})()
    number = 0
    for check, traffic in kit.trials():
        check.run(FleetSubject(fleet, torch.device(ranks.device)), traffic)
        number += 1
    return {"dispatcher": name, "checks": number}


def prepared(shape: str, ranks: Ranks) -> Job:
    """Weights that are the same on all ranks."""
    experts, _, hidden, inner = SHAPES[shape]
    generator = torch.Generator(ranks.device).manual_seed(7)
    dtype = torch.bfloat16 if torch.device(ranks.device).type == "cuda" else torch.float32
    gate_up = torch.empty(experts, 2 * inner, hidden, device=ranks.device, dtype=dtype)
    down = torch.empty(experts, hidden, inner, device=ranks.device, dtype=dtype)
    gate_up.normal_(0, hidden**-0.5, generator=generator)
    down.normal_(0, inner**-0.5, generator=generator)
    placement = Placement.contiguous(experts, ranks.size)
    own = placement.experts[ranks.rank]
    held = slice(own[0], own[-1] + 1)
    whole = bound(shape, ExpertWeights.plain(gate_up, down), Standard())
    return Job(ranks, placement, whole, ExpertWeights.plain(gate_up[held], down[held]), shape)


def current_commit() -> str:
    """The commit that is checked out, or nothing outside a checkout."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    return git.stdout.strip()


def results(arguments: argparse.Namespace, ranks: Ranks) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was asked for: the kit, then the rows of each shape."""
    for name in arguments.dispatchers if arguments.kit else ():
        yield "kit", conform(name, ranks)
    for shape in arguments.shapes:
        job = prepared(shape, ranks)
        for tokens in arguments.tokens:
            for name in arguments.dispatchers:
                if tokens <= SLABS_UP_TO or name not in {"low_latency", "symmetric_slabs"}:
                    yield "rows", measure(name, job, tokens, arguments.rounds)


def run(arguments: argparse.Namespace, ranks: Ranks) -> None:
    """Rank 0 prints, and writes after each row."""
    machine = repr(Machine.current(torch.device(ranks.device)))
    found: dict[str, Any] = {"commit": current_commit(), "machine": machine, "num_ranks": ranks.size}
    found |= {"kit": [], "rows": []}
    for kind, row in results(arguments, ranks):
        found[kind].append(row)
        if ranks.rank == 0:
            print(json.dumps(row), flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    if any(row["faults"] for row in found["rows"]):
        raise SystemExit("not every row is right: see its faults")


def main() -> None:
    """Read the arguments, start the group, run."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes = ["qwen3_30b", "dsv3"] if cuda else ["tiny"]
    names = [name for name in DISPATCHERS if cuda or not name.startswith("symmetric")]
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=shapes)
    parser.add_argument("--tokens", type=lambda text: [int(t) for t in text.split(",")], default=list(TOKENS))
    parser.add_argument("--dispatchers", type=lambda text: text.split(","), default=names)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-kit", dest="kit", action="store_false", help="measure only")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120))
    try:
        with torch.no_grad():
            run(arguments, Ranks.world(f"cuda:{local}" if cuda else "cpu", timeout=60.0))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
