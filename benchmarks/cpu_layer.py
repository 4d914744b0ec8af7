"""One MoE layer on the CPU: moesaic's backends and transformers' three implementations, interleaved in one run.

    python benchmarks/cpu_layer.py [--tokens 1,4,16,1024,4096] [--rounds 9] [--threads N] [--out FILE.json]

Prints a table and, with --out, writes JSON with commit and machine. Every answer is compared with the reference
before anything is timed. The bound of small token counts is the bytes of the touched experts over the measured read
bandwidth.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from moesaic import (
    BACKENDS,
    ExpertWeights,
    Machine,
    Problem,
    Reference,
    Routing,
    StandardBatch,
    SwiGLU,
    bind,
    resolve,
)


def transformers_layers(gate_up: Tensor, down: Tensor) -> dict[str, Callable[[Tensor, Routing], Tensor]]:
    """The three implementations of transformers on a module with these weights."""
    from transformers import Qwen3MoeConfig  # noqa: PLC0415
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts  # noqa: PLC0415

    experts, width, hidden = gate_up.shape
    config = Qwen3MoeConfig(num_experts=experts, hidden_size=hidden, moe_intermediate_size=width // 2)

    def layer(name: str) -> Callable[[Tensor, Routing], Tensor]:
        own = copy.deepcopy(config)
        own._experts_implementation = name  # noqa: SLF001
        with torch.device("meta"):
            module = Qwen3MoeExperts(own)
        module.gate_up_proj = torch.nn.Parameter(gate_up, requires_grad=False)
        module.down_proj = torch.nn.Parameter(down, requires_grad=False)
        return lambda rows, routing: module(rows, routing.topk_ids.long(), routing.topk_weights.to(rows.dtype))

    return {f"transformers {name}": layer(name) for name in ("eager", "batched_mm", "grouped_mm")}


def moesaic_layers(problem: Problem, weights: ExpertWeights) -> dict[str, Callable[[Tensor, Routing], Tensor]]:
    """Every eligible backend."""

    def layer(backend: object) -> Callable[[Tensor, Routing], Tensor]:
        experts = bind(problem, weights, backends=(backend,))
        return lambda rows, routing: experts(StandardBatch(rows, routing))

    eligible = resolve(problem, Machine.current("cpu"), BACKENDS).eligible
    return {f"moesaic {backend.name}": layer(backend) for backend in eligible}


def routing(problem: Problem, num_tokens: int) -> Routing:
    """Seeded routing, mildly skewed (Zipf 0.5 over a random order of experts), distinct ids in a row."""
    g = torch.Generator().manual_seed(num_tokens)
    load = (1 + torch.randperm(problem.num_experts, generator=g).float()).pow(-0.5)
    ids = torch.multinomial(load.expand(num_tokens, -1), problem.top_k, generator=g)
    return Routing(ids, torch.rand(num_tokens, problem.top_k, generator=g).softmax(-1))


def read_bandwidth(num_bytes: int = 1 << 30) -> float:
    """Bytes per second that all threads read: the best of several sums over memory far larger than the caches."""
    block = torch.ones(num_bytes // 4)
    return num_bytes / min(seconds(block.sum) for _ in range(5))


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Time every layer at every token count."""
    problem = Problem(
        num_experts=arguments.experts,
        top_k=arguments.top_k,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.intermediate,
        activation=SwiGLU(),
        dtype=torch.bfloat16,
    )
    g = torch.Generator().manual_seed(0)
    e, h, i = problem.num_experts, problem.hidden_size, problem.intermediate_size
    gate_up = (torch.randn(e, 2 * i, h, generator=g) / h**0.5).bfloat16()
    down = (torch.randn(e, h, i, generator=g) / i**0.5).bfloat16()
    weights = ExpertWeights.plain(gate_up, down)
    every = {**moesaic_layers(problem, weights), **transformers_layers(gate_up, down)}
    oracle = bind(problem, weights, backends=(Reference(),))
    bandwidth = read_bandwidth()
    rows = []
    for num_tokens in arguments.tokens:
        # batched_mm gathers three matrices for every slot: 40 times slower than the others at 64 tokens already.
        layers = {name: layer for name, layer in every.items() if num_tokens <= 16 or "batched" not in name}
        hidden, route = torch.randn(num_tokens, h, generator=g).bfloat16(), routing(problem, num_tokens)
        touched = route.topk_ids.unique().numel()
        small = min(num_tokens, 32)
        wanted = oracle(StandardBatch(hidden[:small], _head(route, small))).float()
        for name, layer in layers.items():
            error = (layer(hidden, route)[:small].float() - wanted).pow(2).mean().sqrt() / wanted.std()
            if not error < 0.03:
                raise SystemExit(f"{name} is wrong at {num_tokens} tokens: rms error over std is {error:.3f}")
        repeats = max(1, min(20, 2000 // (num_tokens * problem.top_k + 60)))
        times: dict[str, list[float]] = {name: [] for name in layers}
        for _ in range(arguments.rounds):
            for name, layer in layers.items():
                times[name] += [seconds(partial(layer, hidden, route)) for _ in range(repeats)]
        bytes_bound = touched * problem.num_weights * 2 / bandwidth
        rows += [
            {
                "tokens": num_tokens,
                "layer": name,
                "microseconds": 1e6 * statistics.median(values),
                "touched_experts": touched,
                "bandwidth_bound_microseconds": 1e6 * bytes_bound,
                "teraflops": problem.flops(num_tokens * problem.top_k) / statistics.median(values) / 1e12,
            }
            for name, values in times.items()
        ]
    return {"problem": repr(problem), "read_gigabytes_per_second": bandwidth / 1e9, "rows": rows}


def _head(route: Routing, count: int) -> Routing:
    return Routing(route.topk_ids[:count], route.topk_weights[:count])


def current_commit() -> str:
    """The commit that is checked out, or nothing outside a checkout."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    return git.stdout.strip()


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=lambda s: [int(n) for n in s.split(",")], default=[1, 4, 16, 256, 1024, 4096])
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--commit", help="what to write as the commit where there is no checkout")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with torch.no_grad():
        found = measure(arguments)
    result = {
        "commit": arguments.commit or current_commit(),
        "machine": repr(Machine.current("cpu")),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **found,
    }
    print(f"{result['machine']}\n{result['threads']} threads, {result['read_gigabytes_per_second']:.1f} GB/s read")
    for tokens in arguments.tokens:
        here = [row for row in found["rows"] if row["tokens"] == tokens]
        grouped = next(row["microseconds"] for row in here if row["layer"] == "transformers grouped_mm")
        for row in here:
            micros = row["microseconds"]
            print(
                f"{tokens:6d} tokens  {row['layer']:26s} {micros:11.0f} us  {row['teraflops']:6.3f} TFLOP/s"
                f"  {grouped / micros:5.2f}x grouped_mm"
                f"  {micros / row['bandwidth_bound_microseconds']:6.2f}x of the bandwidth bound"
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
