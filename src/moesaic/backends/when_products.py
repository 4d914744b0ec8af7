"""From how many rows an expert Hopper multiplies weights as they are stored, or all of them read back."""

from __future__ import annotations

from moesaic.problem import Problem
from moesaic.quant import INT4, MXFP4, NVFP4


def least_rows(problem: Problem) -> float:
    """Mean rows of an expert from which grouped products of codes are faster than Triton's, measured on an H200.

    Order and copy of rows cost some 10 us, which they gain back by what a scale costs: of INT4 from 4 rows on (2 %), of
    FP4 with few rows too once enough weights are read (MXFP4: at 4e8 weights, 8 tokens of qwen3_30b lose 4 % and of
    gptoss_120b gain 12 %).
    """
    stored = problem.num_experts * problem.num_weights
    match problem.scheme.weights:
        case NVFP4():
            return min(1, 2e8 / stored)
        case MXFP4():
            return min(2, 4e8 / stored)
        case INT4():
            return 4
        case _:
            return 32  # of FP8: as fast at 32 rows, 1.8 times at 128


def gains_read_back(problem: Problem) -> bool:
    """Whether many rows are faster with all weights read back: NVFP4's scales cost more in every tile, 9 % at 1024."""
    return isinstance(problem.scheme.weights, NVFP4)
