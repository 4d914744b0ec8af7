"""One MoE layer with weights as stored on a GPU: `TritonQuantized` and its peers, in shuffled rounds of graph replays.

    python benchmarks/gpu_quantized.py [--cells fp8_block/qwen3_30b,...] [--tokens 1,64,4096] [--rounds 9] [--out FILE]

As gpu_layer.py, with which it shares its options and the form of its documents. Codes and scales are drawn; peers read
the same ones. Answers are compared with float32 of the weights read back. The floor is the larger of FLOPs over 790
TFLOP/s, or 1580 where codes of FP8 meet, and the touched experts' bytes as stored, scales included, over 4.28 TB/s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from layers.command import options, read, run, some_of
from layers.shapes import SHAPES
from layers.stored import CELLS, PEERS, SCHEMES, StoredFamily


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, measure, print, write; 1 if moesaic failed or was wrong."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [f"{scheme}/{shape}" for scheme in SCHEMES for shape in SHAPES]
    parser.add_argument("--cells", type=some_of(known), default=list(CELLS), help="SCHEME/SHAPE, in this order")
    options(parser, sorted({peer.name for peers in PEERS.values() for peer in peers}))
    given = read(parser, arguments)
    layers = [(scheme, shape) for scheme, shape in (cell.split("/") for cell in given.cells)]
    return run(StoredFamily(), layers, given, start)


if __name__ == "__main__":
    raise SystemExit(main())
