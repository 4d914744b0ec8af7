"""When a pair should read its expert's weights by itself, and in what strips."""

from __future__ import annotations

from moesaic.problem import Problem
from moesaic.tuning.choices import Vector

MOST_PAIRS = 24
"""Pairs up to which this was measured: qwen3-30b's three tokens."""

ORDER_SECONDS = 3.7e-6
"""How long weights may be read again, because two pairs share an expert, before an order of the pairs pays.

The order and the sum cost two launches: two tokens of qwen3-30b take 40 us instead of 47 without them, of gpt-oss-120b
96 instead of 102, of dsv3, which reads two experts of 88 MB again, 312 instead of 289 (H200). Evenly routed, three
tokens of qwen3-30b read 3.2 us of weights again and still win, three of gpt-oss-120b 4.3 us and four of qwen3-30b 6.4
and do not: half of what the launches cost, since no router is even.
"""


def repeated_bytes(problem: Problem, num_tokens: int) -> float:
    """Bytes of weights that `num_tokens` tokens read more than once if each pair reads its expert; even routing."""
    experts = problem.num_experts
    missed = max(0.0, 1 - problem.top_k / experts) ** num_tokens
    repeated = num_tokens * problem.top_k - experts * (1 - missed)
    return repeated * problem.num_weights * problem.dtype.itemsize


def pays(problem: Problem, num_tokens: int, bandwidth: float) -> bool:
    """Whether each pair of `num_tokens` tokens should read its expert by itself; one token always."""
    if num_tokens == 1:
        return True
    few = num_tokens * problem.top_k <= MOST_PAIRS
    return few and repeated_bytes(problem, num_tokens) <= ORDER_SECONDS * bandwidth


def strips(problem: Problem, num_tokens: int) -> Vector:
    """As measured on qwen3-30b, mixtral, dsv3 and gpt-oss-120b (H200): whole rows in one burst where they fit."""
    hidden, inner = problem.hidden_size, problem.intermediate_size
    if num_tokens > 1 and hidden % 2048:
        return Vector((2, 1024, 1, 2), (4, 1024, 4, 4))
    down = (4, 2048, 3, 8) if inner >= 8192 else (8, 1024, 3, 4)
    if hidden < 2048:
        return Vector((16, 256, 4, 4), down)
    # dsv3's 7168 are 3.5 of the longer
    return Vector((2, 1024, 1, 2) if hidden % 2048 == 1024 else (2, 2048, 1, 4), down)
