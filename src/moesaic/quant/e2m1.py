"""E2M1, the 4-bit float: codes 0 to 7 are 0, .5, 1, 1.5, 2, 3, 4, 6; codes 8 to 15 are their negatives.

Source: OCP Microscaling Formats v1.0, section 5.3.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 6.0
"""The largest value."""


def encode(values: Tensor) -> Tensor:
    """The nearest code of each value, uint8 from 0 to 15; a tie goes to the even code, 6 stands for all above it."""
    size = values.abs()
    # Half way between two codes; a tie is counted (>=) exactly where the code above it is even.
    code = (size > 0.25).to(torch.uint8)
    code += size >= 0.75
    code += size > 1.25
    code += size >= 1.75
    code += size > 2.5
    code += size >= 3.5
    code += size > 5.0
    return code | values.signbit().to(torch.uint8) << 3


def decode(codes: Tensor) -> Tensor:
    """The value of each code in float32.

    Exponent and mantissa are moved to their places in an E4M3 number, whose bias is 6 more: hence 64. This needs no
    table, which would have to be copied to the device at every call.
    """
    as_e4m3 = (codes & 8) << 4 | (codes & 7) << 2
    return as_e4m3.view(torch.float8_e4m3fn).to(torch.float32) * 64
