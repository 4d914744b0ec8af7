"""Scales of 4-bit weights by boxes of 64 rows and 128 columns, what a kernel copies at once, instead of in rows.

A row's scales of 128 columns are 2 to 8 bytes, and in rows those of the next row lie a whole row of scales further:
read from there, 4 bytes at a time, each cost a sector of 32, half as many bytes again as the codes themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from moesaic.kernels.stored_form import StoredForm

ROWS, COLUMNS, WORD = 64, 128, 4


def planes_of(form: StoredForm, scales: Tensor) -> int:
    """Words of at most 4 bytes that hold a row's scales in a box; 0 for formats whose scales stay in rows."""
    if not form.packed or form.tile_rows != 1 or form.zero_point or form.tile_columns not in (16, 32, 64, 128):
        return 0
    size = COLUMNS // form.tile_columns * scales.itemsize
    return max(1, size // WORD) if size in (2, 4, 8) else 0


def boxed(scales: Tensor, parts: int, form: StoredForm) -> Tensor:
    """`[L, N, G]`, of `parts` matrices above each other, as `[L * parts, blocks, boxes, planes, 64, G of a plane]`.

    What a short last box or block lacks is zeros.
    """
    experts, height, width = scales.shape
    rows, planes, per_block = height // parts, form.planes, COLUMNS // form.tile_columns
    boxes, blocks = -(-rows // ROWS), -(-width // per_block)
    out = scales.new_empty(experts * parts, blocks, boxes, planes, ROWS, per_block // planes)
    for matrix, values in enumerate(scales.view(experts * parts, rows, width).view(_bits(scales))):
        whole = pad(values, (0, blocks * per_block - width, 0, boxes * ROWS - rows))
        split = whole.view(boxes, ROWS, blocks, planes, per_block // planes)
        out[matrix].view(_bits(scales)).copy_(split.permute(2, 0, 3, 1, 4))
    return out


def unboxed(boxes: Tensor, parts: int, shape: torch.Size) -> Tensor:
    """The opposite: scales of that shape, bit for bit."""
    experts, height, width = shape
    rows = height // parts
    out = boxes.new_empty(experts * parts, rows, width)
    for matrix, values in enumerate(boxes.view(_bits(boxes))):
        whole = values.permute(1, 3, 0, 2, 4).flatten(2).flatten(0, 1)
        out[matrix].view(_bits(boxes)).copy_(whole[:rows, :width])
    return out.view(shape)


def _bits(values: Tensor) -> torch.dtype:
    """What is copied and filled up where a dtype knows no such operation."""
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.itemsize]
