"""One MoE layer on a GPU: moesaic's backends at every size, in shuffled rounds of CUDA graph replays.

    python benchmarks/gpu_layer.py [--shapes qwen3_30b,mixtral] [--tokens 1,64,4096] [--rounds 9] [--out FILE.json]

Every answer is compared with float32 before it is timed, and must come out the same twice. A graph holds one call for
each of several inputs and routings, so that small layers do not find their weights in L2. The card is limited by its
power: what ran before shows in a figure, so the variants of a cell take turns. The floor is the larger of FLOPs over
790 TFLOP/s and the touched experts' bytes over 4.28 TB/s, what one H200 reaches.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from moesaic import ExpertWeights, Machine, Problem, Routing, StandardBatch, SwiGLU, bind
from moesaic.backends import HopperGrouped, TritonGrouped
from moesaic.tuning import Always, CostModel
from moesaic.tuning.products import product

SHAPES = {  # experts, slots, hidden, intermediate
    "qwen3_30b": (128, 8, 2048, 768),
    "mixtral": (8, 2, 4096, 14336),
    "dsv3_ep8": (32, 8, 7168, 2048),
    "gptoss_120b": (128, 4, 2880, 2880),
}
TOKENS = tuple(2**n for n in range(15))
FLOPS, BANDWIDTH = 790e12, 4.28e12


def variants(problem: Problem, tokens: int) -> dict[str, object]:
    """The layer as it is, by a tuned table if there is one, and where the choice is close, what was not chosen."""
    found: dict[str, object] = {"hopper_grouped": HopperGrouped()}
    mean_rows = tokens * problem.top_k / problem.num_experts
    if 32 <= mean_rows <= 600:
        products = Always(product(problem, tokens * problem.top_k))
        found |= {"products": HopperGrouped(products), "streamed": HopperGrouped(CostModel(products=False))}
    if mean_rows >= 256:
        found["triton_grouped"] = TritonGrouped()
    return found


def routing(tokens: int, experts: int, top_k: int, skew: float) -> Routing:
    """Top-k of random logits, weights renormalised; with `skew` the experts' popularity falls as Zipf's law."""
    popular = (1 + torch.randperm(experts, device="cuda").float()).log() * skew
    weights, ids = (torch.randn(tokens, experts, device="cuda") - popular).softmax(-1).topk(top_k)
    return Routing(ids.int(), weights / weights.sum(-1, keepdim=True))


def exact(x: Tensor, route: Routing, gate_up: Tensor | dict[int, Tensor], down: Tensor | dict[int, Tensor]) -> Tensor:
    """The layer in float32."""
    out = torch.zeros(x.shape, device=x.device)
    for expert in route.topk_ids.unique().tolist():
        token, slot = (route.topk_ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ gate_up[expert].float().T).chunk(2, -1)
        rows = (torch.nn.functional.silu(gate) * up) @ down[expert].float().T
        out.index_add_(0, token, rows * route.topk_weights[token, slot, None])
    return out


def captured(calls: list[Callable[[], Tensor]]) -> torch.cuda.CUDAGraph:
    """One graph of all calls, compiled and warmed before."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        for call in calls:
            call()
        graph.capture_end()
    return graph


def replayed(graphs: dict[str, torch.cuda.CUDAGraph], calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of one call, sorted, each graph once in every shuffled round."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name in random.sample(list(graphs), len(graphs)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / calls)
    return {name: sorted(values) for name, values in times.items()}


def host_microseconds(call: Callable[[], Tensor], calls: int = 200) -> float:
    """What one call costs the host without a graph: the time to issue it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / calls * 1e6


def measure(shape: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Every number of tokens of one shape."""
    experts, top_k, hidden, inner = SHAPES[shape]
    gate_up = torch.empty(experts, 2 * inner, hidden, device="cuda", dtype=torch.bfloat16).normal_(0, hidden**-0.5)
    down = torch.empty(experts, hidden, inner, device="cuda", dtype=torch.bfloat16).normal_(0, inner**-0.5)
    weights = ExpertWeights.plain(gate_up, down)
    problem = Problem(
        num_experts=experts, top_k=top_k, hidden_size=hidden, intermediate_size=inner, activation=SwiGLU()
    )
    rows: list[dict[str, object]] = []
    for tokens in arguments.tokens:
        count = 16 if tokens <= 8 else 4 if tokens <= 1024 else 2
        routes = [routing(tokens, experts, top_k, arguments.skew) for _ in range(count)]
        batches = [StandardBatch(torch.randn(tokens, hidden, device="cuda").bfloat16(), r) for r in routes]
        head = min(tokens, 32)
        route = Routing(routes[0].topk_ids[:head], routes[0].topk_weights[:head])
        wanted = exact(batches[0].hidden_states[:head], route, gate_up, down)
        graphs: dict[str, torch.cuda.CUDAGraph] = {}
        errors: dict[str, float] = {}
        host = 0.0
        for name, backend in variants(problem, tokens).items():
            layer = bind(problem, weights, backends=(backend,))
            got = layer(batches[0])
            errors[name] = ((got[:head].float() - wanted).norm() / wanted.norm()).item()
            if not errors[name] < 0.01 or not torch.equal(got, layer(batches[0])):
                raise SystemExit(f"{shape}: {name} is wrong at {tokens} tokens: error {errors[name]:.4f}")
            graphs[name] = captured([partial(layer, batch) for batch in batches])
            if name == "hopper_grouped" and tokens <= 8:
                host = host_microseconds(partial(layer, batches[0]))
        times = replayed(graphs, count, arguments.rounds)
        touched = statistics.mean(r.topk_ids.unique().numel() for r in routes)
        flops = problem.flops(tokens * top_k)
        floor = 1e6 * max(flops / FLOPS, touched * problem.num_weights * 2 / BANDWIDTH)
        for name, values in times.items():
            middle = statistics.median(values)
            rows.append(
                {
                    "shape": shape,
                    "tokens": tokens,
                    "layer": name,
                    "microseconds": round(middle, 2),
                    "lowest": round(values[0], 2),
                    "highest": round(values[-1], 2),
                    "floor_microseconds": round(floor, 2),
                    "teraflops": round(flops / middle / 1e6, 1),
                    "error": errors[name],
                    **({"host_microseconds": round(host, 1)} if host and name == "hopper_grouped" else {}),
                }
            )
        line = ", ".join(f"{n} {statistics.median(v):.1f} us" for n, v in times.items())
        best = statistics.median(times["hopper_grouped"])
        line += f"; {best / floor:.3f} of the floor {floor:.1f}, {flops / best / 1e6:.0f} TFLOP/s"
        print(f"{shape} T={tokens}: {line}" + (f", host {host:.0f} us" if host else ""), flush=True)
    return rows


def current_commit() -> str:
    """The commit that is checked out, or nothing outside a checkout."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    return git.stdout.strip()


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--tokens", type=lambda text: [int(t) for t in text.split(",")], default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--skew", type=float, default=0.0, help="exponent of Zipf's law, 0 for even routing")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {"commit": current_commit(), "machine": repr(Machine.current("cuda")), "skew": arguments.skew, "rows": []}
    with torch.no_grad():
        for shape in arguments.shapes:
            found["rows"] += measure(shape, arguments)
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1) + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
