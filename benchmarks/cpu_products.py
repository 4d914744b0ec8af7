"""One expert's first product on a CPU in bf16, by moesaic's kernel and by the ways that torch offers.

    python benchmarks/cpu_products.py [--threads N] [--rows 1,2,4,16,64,256] [--rounds 7] [--out FILE.json]

32 matrices of [N=1024, K=1024] are multiplied in turn. "cold" is one pass after the other ways had theirs; "warm" is a
second pass straight after. Microseconds are medians, for one matrix. "sum" reads the same bytes once: the bound of few
rows. What follows from them: docs/performance/cpu.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from moesaic import CpuJit, Machine, Problem, SwiGLU
from moesaic.backends.cpu_packed import PackedProjection
from moesaic.backends.cpu_projection import Projection

EXPERTS, COLUMNS_IN, COLUMNS_OUT, BAG_COLUMNS = 32, 1024, 1024, 512
PROBLEM = Problem(
    num_experts=EXPERTS, top_k=8, hidden_size=COLUMNS_IN, intermediate_size=COLUMNS_OUT // 2, activation=SwiGLU()
)


def bags(weights: Tensor, num_rows: int) -> Callable[[], Tensor]:
    """The product as weighted sums of the rows of `weights` [E, K, N], all experts in one call."""
    blocks, generator = COLUMNS_OUT // BAG_COLUMNS, torch.Generator().manual_seed(num_rows)
    rows = torch.randn(EXPERTS * num_rows, COLUMNS_IN, generator=generator).bfloat16()
    starts = torch.arange(EXPERTS, dtype=torch.int32).repeat_interleave(num_rows).unsqueeze(1) * (COLUMNS_IN * blocks)
    inner = torch.arange(COLUMNS_IN, dtype=torch.int32) * blocks
    index = (torch.arange(blocks, dtype=torch.int32).view(blocks, 1, 1) + starts + inner).flatten()
    ends = torch.arange(0, index.numel(), COLUMNS_IN, dtype=torch.int32)
    factors = rows.expand(blocks, *rows.shape).reshape(-1)
    return lambda: torch.embedding_bag(weights.view(-1, BAG_COLUMNS), index, ends, per_sample_weights=factors)[0]


def kernel(packed: list[Projection], num_rows: int) -> Callable[[], Tensor]:
    """The product of all experts by the kernel of `CpuJit`, vector instructions or AMX as the processor has."""
    product = PackedProjection.of(packed, None, packed[0].dense())
    if not product.block_columns:
        raise SystemExit("oneDNN packs in a way that the kernel does not know")
    rows = torch.randn(EXPERTS * num_rows, COLUMNS_IN).bfloat16()
    return lambda: product(list(range(EXPERTS)), [num_rows] * EXPERTS, rows)


def ways(
    num_rows: int, canonical: Tensor, transposed: Tensor, packed: list[Projection]
) -> dict[str, Callable[[], object]]:
    """Name and call of every way; each multiplies all experts."""
    rows = torch.randn(num_rows, COLUMNS_IN).bfloat16()
    every = torch.randn(EXPERTS, num_rows, COLUMNS_IN).bfloat16()
    found: dict[str, Callable[[], object]] = {
        "mm, canonical": lambda: [torch.mm(rows, weight.t()) for weight in canonical],
        "mm, transposed": lambda: [torch.mm(rows, weight) for weight in transposed],
        "packed": lambda: [projection(rows) for projection in packed],
        "bmm, canonical": lambda: torch.bmm(every, canonical.mT),
        "bmm, transposed": lambda: torch.bmm(every, transposed),
    }
    if not CpuJit().reasons_against(PROBLEM, Machine.current("cpu")):
        found["kernel"] = kernel(packed, num_rows)
    if num_rows == 1:
        found["sum"] = canonical.view(torch.int64).sum
    return found | ({"bags": bags(transposed, num_rows)} if num_rows <= 8 else {})


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2, 4, 8, 16, 32, 64, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    canonical = (torch.randn(EXPERTS, COLUMNS_OUT, COLUMNS_IN) / 32).bfloat16()
    transposed = canonical.mT.contiguous()
    packed = [Projection.of(weight, None) for weight in canonical]
    table: list[dict[str, object]] = []
    with torch.no_grad():
        for num_rows in arguments.rows:
            calls = ways(num_rows, canonical, transposed, packed)
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
            for _ in range(arguments.rounds + 1):
                for name, call in calls.items():
                    times[name].append((seconds(call), seconds(call)))
            for name, pairs in times.items():
                cold, warm = (1e6 * statistics.median(side) / EXPERTS for side in zip(*pairs[1:], strict=True))
                table.append({"rows": num_rows, "way": name, "cold_microseconds": cold, "warm_microseconds": warm})
                print(f"{num_rows:4d} rows  {name:16s} cold {cold:8.1f}  warm {warm:8.1f}")
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    result = {
        "commit": git.stdout.strip(),
        "machine": repr(Machine.current("cpu")),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "table": table,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
