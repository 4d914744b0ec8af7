"""`python -m moesaic.conformance.noise_table`: measure the noise again and print the rows of `tolerance.NOISE`."""

from __future__ import annotations

import sys
from dataclasses import astuple

import torch

from moesaic.conformance.noise import measure
from moesaic.problem import DTYPES

LENGTHS = (32, 256, 1024, 3072)
"""H = I; the last is the longest of the open models, and takes a minute a dtype."""


def row(dtype: torch.dtype, length: int) -> str:
    """One row of the table."""
    rms, worst, each = (f"{value:.1e}" for value in astuple(measure(dtype, length)))
    return f"    ({dtype}, {length}, Deviation({rms}, {worst}, {each})),\n"


if __name__ == "__main__":
    for wanted in DTYPES:
        for length in LENGTHS:
            sys.stdout.write(row(wanted, length))
