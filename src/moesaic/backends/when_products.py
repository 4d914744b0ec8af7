"""From how many rows an expert Hopper multiplies weights as they are stored, or all of them read back."""

from __future__ import annotations

from moesaic.backends.split_products import multiplies_split
from moesaic.problem import Problem
from moesaic.quant import INT4, MXFP4, NVFP4


def least_rows(problem: Problem) -> float:
    """Mean rows of an expert from which grouped products of codes are faster than Triton's, measured on an H200.

    Order and copy of rows cost some 10 us, which they gain back by what a scale costs. Split rows: with MXFP4 always
    (31 us instead of 32 at one token of qwen3_30b, 59 instead of 81 of gptoss_120b), with INT4 from a mean of 0.2 on
    (37 instead of 42 at 4 tokens of qwen3_30b). NVFP4 always (51 instead of 53 at one token). Others were measured
    before scales lay by boxes: INT4 from 4 rows on (2 %), MXFP4 beside rounded inputs once enough weights are read.
    """
    if multiplies_split(problem):
        return 0 if isinstance(problem.scheme.weights, MXFP4) else 0.2
    match problem.scheme.weights:
        case NVFP4():
            return 0
        case MXFP4():
            return min(2, 4e8 / (problem.num_experts * problem.num_weights))
        case INT4():
            return 4
        case _:
            return 32  # of FP8: as fast at 32 rows, 1.8 times at 128


def gains_read_back(problem: Problem) -> bool:
    """Whether many rows are faster with all weights read back: NVFP4's scales cost more in every tile, 9 % at 1024."""
    return isinstance(problem.scheme.weights, NVFP4)
