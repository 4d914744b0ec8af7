"""Two 4-bit codes in a byte: the first in the low bits, so 0x21 holds 1, then 2."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(codes: Tensor) -> Tensor:
    """Codes 0 to 15 `[..., K]` uint8, K even, as bytes `[..., K / 2]`."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(data: Tensor) -> Tensor:
    """Bytes `[..., K / 2]` as codes 0 to 15 `[..., K]` uint8."""
    return torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)
