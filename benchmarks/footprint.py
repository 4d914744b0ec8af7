"""What importing and patching cost: seconds of `import moesaic` beyond torch, and memory around `patch`.

    python benchmarks/footprint.py [--out FILE.json]

Memory is the resident set of a fresh process that builds a random Mixtral-shaped model in bfloat16 (8 layers of 96 MiB
of experts), patches it and runs it: before, the peak during `patch`, and after. A tiny layer is bound first, so that
what Numba takes once in a process is told apart ("compiler").
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

IMPORT = """
import time, torch
start = time.perf_counter()
import moesaic
print(time.perf_counter() - start)
"""

PATCH = """
import gc, resource, threading, time, torch
from pathlib import Path
from transformers import MixtralConfig, MixtralForCausalLM
from moesaic import ExpertWeights, Problem, SwiGLU, bind
from moesaic.integrations.transformers import patch

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

config = MixtralConfig(vocab_size=256, hidden_size=1024, intermediate_size=2048, num_hidden_layers=8,
                       num_local_experts=8, num_attention_heads=8, num_key_value_heads=8)
with torch.device("cpu"):
    model = MixtralForCausalLM(config).to(torch.bfloat16).eval()
layer = sum(p.numel() * 2 for p in model.model.layers[0].mlp.experts.parameters())
ids = torch.arange(16).unsqueeze(0)
with torch.no_grad():
    model(ids)
    without = resident()
    sizes = dict(num_experts=2, top_k=1, hidden_size=64, intermediate_size=64, activation=SwiGLU())
    gate_up, down = torch.zeros(2, 128, 64, dtype=torch.bfloat16), torch.zeros(2, 64, 64, dtype=torch.bfloat16)
    bind(Problem(**sizes), ExpertWeights.plain(gate_up, down))
    before, peak, watching = resident(), 0, True
    def watch():
        global peak
        while watching:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            peak = max(peak, pages * resource.getpagesize())
            time.sleep(0.001)
    thread = threading.Thread(target=watch)
    thread.start()
    patch(model)
    watching = False
    thread.join()
    after = resident()
    model(ids)
print(layer, without, before, peak, after)
"""


def output_of(program: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    seconds = [float(output_of(IMPORT)) for _ in range(7)]
    layer, without, before, peak, after = (int(word) / 2**20 for word in output_of(PATCH).split()[-5:])
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    result = {
        "commit": git.stdout.strip(),
        "import_seconds_beyond_torch": statistics.median(seconds),
        "expert_mebibytes_per_layer": layer,
        "compiler_mebibytes": before - without,
        "resident_mebibytes_before": before,
        "peak_mebibytes_above_before": peak - before,
        "resident_mebibytes_gained": after - before,
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
