"""E4M3, the 8-bit float of FP8: largest number 448, no infinity, smallest subnormal 2^-9.

Source: Micikevicius et al. 2022, arXiv:2209.05433.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0
"""The largest number."""

SMALLEST = 2.0**-9
"""The smallest number above zero."""


def encode(values: Tensor) -> Tensor:
    """The nearest number as float8_e4m3fn, ties to even; +-448 stands for all beyond it, NaN stays NaN.

    A cast alone saturates in torch 2.13; the clamp makes that true of every version.
    """
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
