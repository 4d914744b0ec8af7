"""The least time for a layer: its operations, or the bytes of the experts that it touches."""

from __future__ import annotations

from moesaic import FP8, Problem

FLOPS, BANDWIDTH = 790e12, 4.28e12
"""What one H200 reaches in bfloat16, and reads a second. FP8 on both sides counts as twice the operations."""


def floor_microseconds(problem: Problem, tokens: int, touched: float) -> float:
    """For so many tokens of which so many experts are asked for; bytes as stored, scales included."""
    peak = FLOPS * (2 if isinstance(problem.scheme.inputs, FP8) else 1)
    share = touched / problem.num_experts
    return 1e6 * max(problem.flops(tokens * problem.top_k) / peak, share * problem.weight_bytes / BANDWIDTH)
