"""One MoE layer in bfloat16 on a GPU: moesaic and its peers at every size, in shuffled rounds of CUDA graph replays.

    python benchmarks/gpu_layer.py [--shapes qwen3_30b,mixtral] [--tokens 1,64,4096] [--rounds 9] [--out FILE.json]

Peers are those of `peers/` that are installed or unpacked in $PEERS (`--peers` names fewer). Every answer that can be
is compared with float32 before it is timed, and moesaic's must come out the same twice; who raises is left out of the
cell, and `not_run` says why. A graph holds one call for each of several inputs and routings, so that small layers do
not find their weights in L2. The card is limited by its power: what ran before shows in a figure, so all who compute a
cell take turns. The floor is the larger of FLOPs over 790 TFLOP/s and the touched experts' bytes over 4.28 TB/s, what
one H200 reaches. The document is written after every cell. plot_layers.py draws it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from layers.command import options, read, run, some_of
from layers.plain import PEERS, PlainFamily
from layers.shapes import ON_GPU, SHAPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, measure, print, write; 1 if moesaic failed or was wrong."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=some_of(SHAPES), default=list(ON_GPU), help="in this order (all but tiny)")
    options(parser, [peer.name for peer in PEERS])
    given = read(parser, arguments)
    return run(PlainFamily(), [("bf16", shape) for shape in given.shapes], given, start)


if __name__ == "__main__":
    raise SystemExit(main())
