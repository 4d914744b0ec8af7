"""Codes of 4 bits in the order in which the Triton kernels read them: 128 columns of a row in 64 bytes.

Byte j of a block holds column j in its low bits and column j + 64 in its high bits. So the numbers in the low bits of
a block are neighbours in a row, and meet 64 columns of x that lie side by side too. A short last block is filled up
with zeros: they meet columns that are read as zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from moesaic.quant.nibbles import pack, unpack

_COLUMNS, _HALF = 128, 64


def shuffled(data: Tensor) -> Tensor:
    """Bytes `[L, N, K / 2]`, two neighbours in each, as `[L, N, ceil(K / 128) * 64]`; one expert at a time."""
    experts, rows, half = data.shape
    blocks = -(-2 * half // _COLUMNS)
    out = data.new_empty(experts, rows, blocks * _HALF)
    for expert in range(experts):
        codes = pad(unpack(data[expert]), (0, blocks * _COLUMNS - 2 * half)).view(rows, blocks, 2, _HALF)
        out[expert] = (codes[:, :, 0] | codes[:, :, 1] << 4).flatten(1)
    return out


def restored(data: Tensor, columns: int) -> Tensor:
    """The opposite: `[L, N, columns / 2]`, bit for bit."""
    experts, rows, width = data.shape
    out = data.new_empty(experts, rows, columns // 2)
    for expert in range(experts):
        block = data[expert].view(rows, width // _HALF, _HALF)
        codes = torch.stack((block & 15, block >> 4), 2).flatten(1)
        out[expert] = pack(codes[:, :columns])
    return out
