"""One MoE layer with weights as stored on a GPU: `TritonQuantized` at every size, in shuffled rounds of graph replays.

    python benchmarks/gpu_quantized.py [--cells fp8_block/qwen3_30b,...] [--tokens 1,64,4096] [--rounds 7] [--out FILE]

Codes and scales are drawn; every answer is compared with float32 of the weights read back before it is timed, and must
come out the same twice. The floor is the larger of FLOPs over 790 TFLOP/s, or 1580 where codes of FP8 meet, and the
touched experts' bytes as stored, scales included, over 4.28 TB/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import torch
from gpu_layer import BANDWIDTH, FLOPS, SHAPES, TOKENS, captured, current_commit, exact, replayed, routing
from torch import Tensor

from moesaic import (
    FP8,
    INT4,
    MXFP4,
    NVFP4,
    Experts,
    ExpertWeights,
    Format,
    Machine,
    PerBlock,
    PerGroup,
    PerRow,
    Plain,
    Problem,
    Quantized,
    Routing,
    Scheme,
    StandardBatch,
    SwiGLU,
    TritonQuantized,
    bind,
)

NEVER = 2**31
SCHEMES = {
    "fp8_block": Scheme(FP8(PerBlock()), FP8(PerGroup(128))),
    "fp8_row": Scheme(FP8(PerRow()), FP8(PerRow())),
    "mxfp4": Scheme(MXFP4(), Plain()),
    "nvfp4": Scheme(NVFP4(), Plain()),
    "int4": Scheme(INT4(PerGroup(128), scale=torch.bfloat16), Plain()),
}
CELLS = tuple(
    f"{scheme}/{shape}"
    for scheme, shape in (
        ("fp8_block", "qwen3_30b"),
        ("fp8_block", "dsv3_ep8"),
        ("fp8_block", "mixtral"),
        ("fp8_row", "qwen3_30b"),
        ("mxfp4", "qwen3_30b"),
        ("mxfp4", "gptoss_120b"),
        ("int4", "qwen3_30b"),
        ("nvfp4", "qwen3_30b"),
    )
)
INPUT_ERROR = {"fp8_block": 0.08, "fp8_row": 0.08}
"""What rounding rows to FP8 twice costs of a layer's rms; the kit judges exactly, here only nonsense is caught."""


def variants(mean_rows: float) -> dict[str, TritonQuantized]:
    """The backend as it is, and what it did not choose where the choice is close."""
    found = {"triton_quantized": TritonQuantized()}
    if 0.25 <= mean_rows <= 300:
        found |= {"in triton": TritonQuantized(NEVER, NEVER), "in products": TritonQuantized(0)}
    if mean_rows >= 200:
        found |= {"read back": TritonQuantized(NEVER, 0)}
    return found


def drawn(stored: Format, experts: int, rows: int, columns: int, parts: int) -> Quantized:
    """Random codes, scales that give weights of about the usual size."""
    shape = (experts, rows, columns) if parts == 1 else (experts, parts, rows // parts, columns)
    tensors: dict[str, Tensor] = {}
    for name, wanted in stored.storage(shape, torch.bfloat16).items():
        *heads, height, width = wanted.shape
        size = (*heads, height, width) if parts == 1 else (*heads[:-1], heads[-1] * height, width)
        uniform = torch.rand(size, device="cuda")
        if name == "data" and wanted.dtype == torch.uint8:
            values = torch.randint(0, 256, size, device="cuda", dtype=torch.uint8)
        elif name == "data":
            values = torch.randn(size, device="cuda") * 60
        elif name == "global_scale":
            values = torch.full(size, 1e-4, device="cuda")
        elif wanted.dtype == torch.float8_e8m0fnu:
            values = torch.full(size, 2.0**-6, device="cuda")
        elif wanted.dtype == torch.float8_e4m3fn:
            values = uniform * 100 + 50
        else:
            values = (uniform * 0.5 + 0.3) * (1e-3 if isinstance(stored, FP8) else 1e-2)
        tensors[name] = values.to(wanted.dtype)
    return Quantized(stored, tensors.pop("data"), tensors, parts)


def measure(cell: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Every number of tokens of one scheme and shape."""
    name, shape = cell.split("/")
    scheme, (experts, top_k, hidden, inner) = SCHEMES[name], SHAPES[shape]
    weights = ExpertWeights(
        drawn(scheme.weights, experts, 2 * inner, hidden, 2), drawn(scheme.weights, experts, hidden, inner, 1)
    )
    problem = Problem(
        num_experts=experts,
        top_k=top_k,
        hidden_size=hidden,
        intermediate_size=inner,
        activation=SwiGLU(),
        scheme=scheme,
    )
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors)
    rows: list[dict[str, object]] = []
    for tokens in arguments.tokens:
        count = 16 if tokens <= 8 else 4 if tokens <= 1024 else 2
        routes = [routing(tokens, experts, top_k, 0.0) for _ in range(count)]
        batches = [StandardBatch(torch.randn(tokens, hidden, device="cuda").bfloat16(), r) for r in routes]
        graphs, errors = {}, {}
        for kind, backend in variants(tokens * top_k / experts).items():
            layer = bind(problem, weights, backends=(backend,))
            errors[kind] = checked(layer, batches[0], weights, name, f"{cell}: {kind} at {tokens} tokens")
            graphs[kind] = captured([partial(layer, batch) for batch in batches])
        times = replayed(graphs, count, arguments.rounds)
        touched = statistics.mean(r.topk_ids.unique().numel() for r in routes)
        flops = problem.flops(tokens * top_k)
        peak = 2 * FLOPS if isinstance(scheme.inputs, FP8) else FLOPS
        floor = 1e6 * max(flops / peak, touched / experts * size / BANDWIDTH)
        for kind, values in times.items():
            middle = statistics.median(values)
            rows.append(
                {
                    "shape": shape,
                    "scheme": name,
                    "tokens": tokens,
                    "impl": kind,
                    "scope": "layer",
                    "microseconds": round(middle, 2),
                    "lowest": round(values[0], 2),
                    "highest": round(values[-1], 2),
                    "floor": round(floor, 2),
                    "teraflops": round(flops / middle / 1e6, 1),
                    "error": errors[kind],
                }
            )
        line = ", ".join(f"{kind} {statistics.median(v):.1f}" for kind, v in times.items())
        own = statistics.median(times["triton_quantized"])
        print(f"{cell} T={tokens}: {line}; {own / floor:.2f} of {floor:.1f}, {flops / own / 1e6:.0f} TF", flush=True)
    return rows


def checked(layer: Experts, batch: StandardBatch, weights: ExpertWeights, name: str, what: str) -> float:
    """The error against float32 of the first tokens, relative; raises SystemExit if it is none of rounding."""
    head = min(batch.hidden_states.shape[0], 4)
    route = Routing(batch.routing.topk_ids[:head], batch.routing.topk_weights[:head])
    got = layer(batch)
    used: list[int] = route.topk_ids.unique().tolist()
    gate_up = {e: weights.gate_up.expert(e).dequantize(torch.float32) for e in used}
    down = {e: weights.down.expert(e).dequantize(torch.float32) for e in used}
    wanted = exact(batch.hidden_states[:head], route, gate_up, down)
    error = ((got[:head].float() - wanted).norm() / wanted.norm()).item()
    if not error < INPUT_ERROR.get(name, 0.01) or not torch.equal(got, layer(batch)):
        raise SystemExit(f"{what} is wrong: error {error:.4f}")
    return error


def main() -> None:
    """Read the arguments, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=lambda text: text.split(","), default=list(CELLS))
    parser.add_argument("--tokens", type=lambda text: [int(t) for t in text.split(",")], default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, object] = {"commit": current_commit(), "machine": repr(Machine.current("cuda"))}
    rows: list[dict[str, object]] = []
    with torch.no_grad():
        for cell in arguments.cells:
            rows += measure(cell, arguments)
            if arguments.out:
                arguments.out.write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
