"""What counting the load of experts costs: a layer on the CPU with a recorder and without, in shuffled rounds.

    python benchmarks/load_recorder.py [--tokens 1,16,256,1024] [--rounds 31] [--threads N] [--out FILE.json]

"layer" is the dispatch and the experts of one layer (E=32 K=8 H=1024 I=512, bfloat16) without a recorder, "recorded"
the same with one, "record" the call of the recorder alone. Prints medians in microseconds, and with --out writes JSON
with commit, machine and the load of the machine, which has to be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from cpu_layer import current_commit, routing, seconds
from torch import Tensor

from moesaic import Dispatcher, Experts, ExpertWeights, Local, Machine, Problem, Routing, SwiGLU, bind
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.recorded import Recorded


def layer(dispatcher: Dispatcher, experts: Experts, rows: Tensor, route: Routing) -> Tensor:
    """One call, without the router."""
    batch, receipt = dispatcher.dispatch(rows, route)
    return dispatcher.combine(experts(batch), receipt)


def measure(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Microseconds at every token count."""
    sizes = {"num_experts": 32, "top_k": 8, "hidden_size": 1024, "intermediate_size": 512}
    problem = Problem(**sizes, activation=SwiGLU(), dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(32, 1024, 1024, generator=generator).bfloat16() / 32
    down = torch.randn(32, 1024, 512, generator=generator).bfloat16() / 32
    experts = bind(problem, ExpertWeights.plain(gate_up, down))
    recorder = LoadRecorder(1, problem.num_experts)
    rows = []
    for tokens in arguments.tokens:
        given = (torch.randn(tokens, 1024, generator=generator).bfloat16(), routing(problem, tokens))
        calls: dict[str, Callable[[], object]] = {
            "layer": partial(layer, Local(), experts, *given),
            "recorded": partial(layer, Recorded(Local(), recorder, 0), experts, *given),
            "record": partial(recorder.record, 0, given[1].topk_ids),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(arguments.rounds + 3):
            for name in random.sample(list(calls), len(calls)):
                times[name].append(seconds(calls[name]))
        found = {name: 1e6 * statistics.median(own[3:]) for name, own in times.items()}
        rows.append({"tokens": tokens, **found, "record_over_layer": found["record"] / found["layer"]})
    return rows


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=lambda s: [int(n) for n in s.split(",")], default=[1, 16, 256, 1024])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with torch.no_grad():
        rows = measure(arguments)
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if arguments.out:
        machine, load = repr(Machine.current("cpu")), os.getloadavg()[0]
        document = {"commit": current_commit(), "machine": machine, "threads": torch.get_num_threads(), "load": load}
        arguments.out.write_text(json.dumps({**document, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
