"""Problems, machines and tables for the tests of tuning."""

import dataclasses

from moesaic import Problem, SwiGLU, known_machine
from moesaic.tuning import Entry, Origin, Product, Streamed, Table, Vector

H200 = dataclasses.replace(known_machine("h200"), packages=(("torch", "2.11.0+cu130"), ("triton", "3.6.0")))
ORIGIN = Origin.of(H200)

SHAPES = {
    "qwen3_30b": (128, 8, 2048, 768),
    "mixtral": (8, 2, 4096, 14336),
    "dsv3_ep8": (32, 8, 7168, 2048),
    "gptoss_120b": (128, 4, 2880, 2880),
}


def layer(shape, **changes):
    """The problem of one of the four measured layers."""
    sizes = dict(zip(("num_experts", "top_k", "hidden_size", "intermediate_size"), SHAPES[shape], strict=True))
    return Problem(**{**sizes, "activation": SwiGLU(), **changes})


QWEN3 = layer("qwen3_30b")
VECTOR = Vector((2, 2048, 1, 4), (8, 1024, 3, 4))
STREAMED = Streamed(16, 0, (8, 128, 3), (16, 128, 3), warps=1, swap=False, tma=False)
WGMMA = Streamed(32, 16, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True)
PRODUCT = Product(gather=False, group=4)
ENTRIES = (
    Entry(1, VECTOR, 23.5, 24.0),
    Entry(8, STREAMED, 110.25, 110.25),
    Entry(512, WGMMA, 300.0, 310.0),
    Entry(1024, Product(group=16), 350.0, 352.5),
)


def table(**changes):
    """A table of qwen3-30b on an H200."""
    return Table(**{"backend": "hopper_grouped", "problem": QWEN3, "origin": ORIGIN, "entries": ENTRIES, **changes})
