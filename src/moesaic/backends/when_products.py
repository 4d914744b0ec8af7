"""From how many rows an expert Hopper multiplies weights as they are stored, or all of them read back."""

from __future__ import annotations

from moesaic.problem import Problem
from moesaic.quant import INT4, MXFP4, NVFP4


def least_rows(problem: Problem) -> int:
    """Mean rows of an expert from which grouped products of codes are faster than Triton's, measured on an H200.

    Of weights of 4 bits in tiles of 32 rows: NVFP4 gains from 1 row on, MXFP4 from 2, INT4 19 % at 16 and nothing at 4.
    """
    match problem.scheme.weights:
        case NVFP4():
            return 1
        case MXFP4():
            return 2
        case INT4():
            return 6
        case _:
            return 32  # of FP8: as fast at 32 rows, 1.8 times at 128


def gains_read_back(problem: Problem) -> bool:
    """Whether many rows are faster with all weights read back: NVFP4's scales cost more in every tile, 9 % at 1024."""
    return isinstance(problem.scheme.weights, NVFP4)
