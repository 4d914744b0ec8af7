"""A program: the layer of one shape under `torch.compile(fullgraph=True)` on CUDA; prints a line for each that held.

It runs in a process of its own, because the run-time type checks of the test run cannot be traced. It ends itself after
LIMIT seconds, with the tracebacks of what it was doing. `python -m tests.compiled_on_cuda [MODE [DEVICE]]`.
"""

import faulthandler
import sys
import time

import torch

from moesaic import BACKENDS, ExpertWeights, Problem, Routing, StandardBatch, SwiGLU, bind

LIMIT = 90
MODES = ("default", "reduce-overhead")
COUNTS = (1, 5, 64, 600)
ROUTINGS = 5
"""Of each number of tokens: `reduce-overhead` runs the first, records the second and replays those after it."""

PROBLEM = Problem(num_experts=16, top_k=8, hidden_size=2048, intermediate_size=768, activation=SwiGLU())


def weights_on(device):
    """Of the layer, as large as those of a model."""
    p = PROBLEM
    gate_up = torch.empty(p.num_experts, p.width, p.hidden_size, dtype=p.dtype, device=device)
    down = torch.empty(p.num_experts, p.hidden_size, p.intermediate_size, dtype=p.dtype, device=device)
    return ExpertWeights.plain(gate_up.normal_(0, p.hidden_size**-0.5), down.normal_(0, p.intermediate_size**-0.5))


def batch_on(device, tokens):
    """Hidden states and a routing; some slots are inactive, and the last expert stays without rows."""
    scores = torch.rand(tokens, PROBLEM.num_experts - 1, device=device)
    ids = scores.argsort(1)[:, : PROBLEM.top_k].int()
    ids = torch.where(torch.rand(ids.shape, device=device) < 0.1, -1, ids)
    hidden = torch.randn(tokens, PROBLEM.hidden_size, device=device).to(PROBLEM.dtype)
    return hidden, ids, torch.rand(ids.shape, device=device)


@torch.no_grad()
def compiled_as_eager(mode, device, layer):
    """Print the seconds of each compilation; raise where a compiled call differs from an eager one in a bit."""

    def run(hidden, ids, weights):
        return layer(StandardBatch(hidden, Routing(ids, weights)))

    compiled = torch.compile(run, fullgraph=True, dynamic=False, mode=mode)
    for tokens in COUNTS:
        begun = time.perf_counter()
        for number in range(ROUTINGS):
            given = batch_on(device, tokens)
            expected = run(*given)
            got = compiled(*given).clone()  # a replay overwrites what the one before returned
            if number == 0:
                first = time.perf_counter() - begun
            if not torch.equal(got, expected):
                worst = (got.float() - expected.float()).abs().max().item()
                raise SystemExit(f"{mode}, {tokens} tokens: call {number} differs from the eager one by {worst:.3g}")
            if got.isnan().any() or not got.any():
                raise SystemExit(f"{mode}, {tokens} tokens: call {number} gave no numbers")
        whole = time.perf_counter() - begun
        print(f"{mode}, {tokens} tokens: eager bits, first call {first:.1f} s, all {whole:.1f} s", flush=True)  # noqa: T201


def main():
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    modes = [sys.argv[1]] if len(sys.argv) > 1 else MODES
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    torch.manual_seed(3)
    begun = time.perf_counter()
    layer = bind(PROBLEM, weights_on(device), backends=BACKENDS)
    for mode in modes:
        torch.compiler.reset()
        compiled_as_eager(mode, device, layer)
    skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    spent = time.perf_counter() - begun
    print(f"{layer.backend.name}: {skipped} graphs were not captured, {spent:.0f} s in all", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
