"""Shapes of whole layers that one GPU computes alone, and how many tokens they are given."""

from __future__ import annotations

from dispatching.shapes import Shape

SHAPES = {
    "qwen3_30b": Shape(num_experts=128, top_k=8, hidden_size=2048, intermediate_size=768),
    "mixtral": Shape(num_experts=8, top_k=2, hidden_size=4096, intermediate_size=14336),
    "dsv3_ep8": Shape(num_experts=32, top_k=8, hidden_size=7168, intermediate_size=2048),
    "gptoss_120b": Shape(num_experts=128, top_k=4, hidden_size=2880, intermediate_size=2880),
    "odd": Shape(num_experts=64, top_k=8, hidden_size=2896, intermediate_size=1424),
    "even": Shape(num_experts=64, top_k=8, hidden_size=2944, intermediate_size=1408),
    "tiny": Shape(num_experts=8, top_k=2, hidden_size=64, intermediate_size=48),
}
"""By name. Both sizes of `odd` are multiples of 16, which rows of 32 bytes need, but of no larger power of two, so the
last block of every tiling is short in both products. Those of `even`, its neighbour with 0.5 % more weights, are
multiples of 128: the ratio of their distances from the floor is what odd sizes cost. Their top_k is a power of two,
since the router of triton_kernels takes no other. `tiny` is for a dry run."""
ON_GPU = tuple(name for name in SHAPES if name != "tiny")
TOKENS = tuple(2**n for n in range(15))
