"""The blocks in which `kernels/codebook_block.py` reads codes of 4 bits and their scales, and the way back.

A block is 64 rows of the weight, the last one filled up with zeros. Row 16 v + lane of a block gives the bits 4 v to
4 v + 3 of a 16-bit word; a lane's 32 bits hold that word of an even k, then that of the next.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS, VECTORS, LANES = 64, 4, 16


def packed_codes(data: Tensor) -> Tensor:
    """Canonical bytes `[N, K / 2]`, the code of an even k in the low bits, as `[B, K / 2, 64]`."""
    blocks = _filled(data).unflatten(0, (-1, VECTORS, LANES)).permute(0, 3, 2, 1)  # [B, K / 2, lane, v]
    low, high = blocks & 15, blocks >> 4
    words = torch.stack((low, high), dim=-2)  # [B, K / 2, lane, parity of k, v]
    return (words[..., 0::2] | words[..., 1::2] << 4).flatten(2)


def canonical_codes(codes: Tensor, rows: int) -> Tensor:
    """The opposite of `packed_codes` for a weight of so many rows."""
    words = codes.unflatten(2, (LANES, 2, VECTORS // 2))
    low, high = torch.stack((words & 15, words >> 4), dim=-1).flatten(-2).unbind(-2)  # [B, K / 2, lane, v] each
    return (low | high << 4).permute(0, 3, 2, 1).flatten(0, 2)[:rows].contiguous()


def packed_scales(scales: Tensor) -> Tensor:
    """`[N, G]`, a scale for each group of columns, as `[B, G, 64]`, in their own dtype."""
    bits = scales.view(_BITS[scales.dtype.itemsize])
    return _filled(bits).unflatten(0, (-1, ROWS)).transpose(1, 2).contiguous().view(scales.dtype)


def canonical_scales(scales: Tensor, rows: int) -> Tensor:
    """The opposite of `packed_scales`."""
    bits = scales.view(_BITS[scales.dtype.itemsize])
    return bits.transpose(1, 2).flatten(0, 1)[:rows].contiguous().view(scales.dtype)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Dtypes that torch pads and copies without looking at the values, which it does not for all of 8 bits."""


def _filled(matrix: Tensor) -> Tensor:
    return pad(matrix, (0, 0, 0, -matrix.shape[0] % ROWS))
