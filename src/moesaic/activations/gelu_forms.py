"""Both forms of GELU, written out where torch's own is not the formula."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional


def gelu(values: Tensor, approximate: Literal["none", "tanh"]) -> Tensor:
    """`x * Phi(x)` with the error function, or its tanh form."""
    if approximate == "tanh":
        return functional.gelu(values, approximate="tanh")
    # torch 2.13's float32 gelu on a CPU turns infinity into NaN, or not, by the place of the element in the tensor.
    return 0.5 * values * (1 + torch.erf(values * math.sqrt(0.5)))
