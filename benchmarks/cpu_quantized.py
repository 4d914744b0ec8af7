"""One quantized MoE layer on the CPU: compiled and torch's kernels, reading back, and plain weights, in one run.

    python benchmarks/cpu_quantized.py [--tokens 1,4,16,64] [--rounds 15] [--threads N] [--out FILE.json]

"jit" is `CpuJitQuantized`; "kernel" is `CpuQuantized`; "read back" the same layer with every expert dequantized at each
call, then multiplied, as for formats without a kernel; "plain" are `Cpu` and `CpuJit` on bfloat16 weights. Every answer
is compared with the oracle of its own scheme before anything is timed. Prints a table, and with --out writes JSON with
commit and machine: medians, 10th percentiles and the load of the machine, which has to be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from cpu_layer import current_commit, read_bandwidth, routing, seconds
from torch import Tensor

from moesaic import (
    INT4,
    INT8,
    MXFP4,
    Cpu,
    CpuJit,
    CpuJitQuantized,
    CpuQuantized,
    ExpertWeights,
    Machine,
    PerGroup,
    PerRow,
    Plain,
    Problem,
    Reference,
    Routing,
    Scheme,
    StandardBatch,
    SwiGLU,
    bind,
)
from moesaic.backends.cpu_dequantized import DequantizedProjection
from moesaic.backends.cpu_stored import CpuStored

SCHEMES = {
    "int4 g128": Scheme(INT4(PerGroup(128), scale=torch.bfloat16), Plain()),
    "int8 row": Scheme(INT8(PerRow(), scale=torch.bfloat16), Plain()),
    "mxfp4": Scheme(MXFP4(), Plain()),
}
Layer = Callable[[Tensor, Routing], Tensor]


def bound(problem: Problem, weights: ExpertWeights, backend: object) -> Layer:
    """The layer bound to one backend."""
    experts = bind(problem, weights, backends=(backend,))
    return lambda rows, route: experts(StandardBatch(rows, route))


def read_back(problem: Problem, weights: ExpertWeights) -> Layer:
    """CpuQuantized without a kernel."""
    experts = range(problem.num_experts)
    gate_up, down = ([DequantizedProjection(w.expert(e)) for e in experts] for w in (weights.gate_up, weights.down))
    prepared = CpuStored(gate_up, down, None, None, None)
    return lambda rows, route: CpuQuantized().run(StandardBatch(rows, route), prepared, problem)


def layers(problem: Problem, plain: ExpertWeights) -> dict[str, tuple[Layer, Layer]]:
    """Name -> the layer and its oracle."""
    oracle = bound(problem, plain, Reference())
    jit = not CpuJit().reasons_against(problem, Machine.current("cpu"))
    backends = (CpuJit(), Cpu()) if jit else (Cpu(),)
    found = {f"plain {b.name}": (bound(problem, plain, b), oracle) for b in backends}
    for name, scheme in SCHEMES.items():
        own, weights = replace(problem, scheme=scheme), plain.quantize(scheme.weights)
        oracle = bound(own, weights, Reference())
        if name != "int8 row" and jit:
            found[f"{name} jit"] = (bound(own, weights, CpuJitQuantized()), oracle)
        if name != "mxfp4":
            found[f"{name} kernel"] = (bound(own, weights, CpuQuantized()), oracle)
        found[f"{name} read back"] = (read_back(own, weights), oracle)
    return found


def measure(tokens: list[int], rounds: int) -> dict[str, object]:
    """Time every layer at every token count, in turns."""
    problem = Problem(
        num_experts=32,
        top_k=8,
        hidden_size=1024,
        intermediate_size=512,
        activation=SwiGLU(),
        dtype=torch.bfloat16,
    )
    g = torch.Generator().manual_seed(0)
    gate_up = (torch.randn(32, 1024, 1024, generator=g) / 32).bfloat16()
    down = (torch.randn(32, 1024, 512, generator=g) / 512**0.5).bfloat16()
    every = layers(problem, ExpertWeights.plain(gate_up, down))
    bandwidth = read_bandwidth()
    rows = []
    for count in tokens:
        hidden, route = torch.randn(count, 1024, generator=g).bfloat16(), routing(problem, count)
        for name, (layer, oracle) in every.items():
            wanted = oracle(hidden, route).float()
            error = (layer(hidden, route).float() - wanted).pow(2).mean().sqrt() / wanted.std()
            if not error < 0.016:
                raise SystemExit(f"{name} is wrong at {count} tokens: rms error over std is {error:.4f}")
        times: dict[str, list[float]] = {name: [] for name in every}
        for _ in range(rounds):
            for name, (layer, _) in every.items():
                times[name] += [seconds(partial(layer, hidden, route)) for _ in range(5)]
        rows += [
            {
                "tokens": count,
                "layer": name,
                "microseconds": 1e6 * statistics.median(values),
                "p10_microseconds": 1e6 * statistics.quantiles(values, n=10)[0],
            }
            for name, values in times.items()
        ]
    return {"problem": repr(problem), "read_gigabytes_per_second": bandwidth / 1e9, "rows": rows}


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=lambda s: [int(n) for n in s.split(",")], default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    before = os.getloadavg()[0]
    with torch.no_grad():
        found = measure(arguments.tokens, arguments.rounds)
    result = {
        "commit": current_commit(),
        "machine": repr(Machine.current("cpu")),
        "threads": torch.get_num_threads(),
        "load_before": before,
        "torch": torch.__version__,
        **found,
    }
    for row in found["rows"]:
        times = f"{row['microseconds']:10.0f} us  p10 {row['p10_microseconds']:10.0f}"
        print(f"{row['tokens']:6d} tokens  {row['layer']:22s} {times}")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
