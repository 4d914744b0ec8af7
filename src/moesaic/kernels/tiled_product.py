"""out[r] = W[e(r)] @ x[r] + b[e(r)] for the rows of many experts in one parallel loop, on AMX: bfloat16, float32 sums.

As `packed_product.py`, with `packed_tiles.py` inside: the weights are read once for every 32 rows of an expert.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from numba import prange
from torch import Tensor

from moesaic.errors import BackendError
from moesaic.kernels.packed_tiles import TILE_COLUMNS, TILE_DEPTH, tile_configurations, tiles_of
from moesaic.kernels.parallel_loop import as_many_threads_as_torch, parallel_loop

_CONFIGURATIONS = tile_configurations()
_one, _two = tiles_of(1), tiles_of(2)


def tiled_product(
    weights: Tensor, biases: Tensor, groups: list[tuple[int, int, int]], x: Tensor, out: Tensor, block_columns: int
) -> None:
    """Write the rows of every group of `out`, on as many cores as torch uses.

    `weights`: int64 `[E]`, the address of each expert's packed weight. `biases`: float32 `[E, N]`. `groups`: (expert,
    its first row, its number of rows). `x`: bfloat16 `[S, K]`, K a multiple of 32, as padded in the weight, and zero
    there. `out`: float32 `[S, N]`, N a multiple of `block_columns`, a multiple of 32. Shapes are the caller's business.
    """
    if (x.dtype, out.dtype, biases.dtype) != (torch.bfloat16, torch.float32, torch.float32):
        raise BackendError(f"x, out and biases are {x.dtype}, {out.dtype} and {biases.dtype}: memory would be misread")
    with as_many_threads_as_torch():
        _product(
            np.array(groups, dtype=np.int64).reshape(-1, 3),
            weights.numpy(),
            _CONFIGURATIONS.ctypes.data,
            (biases.data_ptr(), 4 * biases.stride(0)),
            (x.data_ptr(), 2 * x.stride(0)),
            (out.data_ptr(), 4 * out.stride(0)),
            (x.shape[1], out.shape[1] // TILE_COLUMNS, block_columns),
        )


@parallel_loop
@no_type_check
def _product(groups, weights, configurations, bias, source, target, shape):
    """`bias`, `source`, `target`: address and bytes between rows. `shape`: K, slices of 32 columns, packed columns."""
    depth, slices, block_columns = shape
    for task in prange(len(groups) * slices):
        group = task // slices
        column = (task - group * slices) * TILE_COLUMNS
        expert, row, count = groups[group]
        inside = column % block_columns
        weight = weights[expert] + (column - inside) * depth * 2 + inside * 4
        start = bias[0] + expert * bias[1] + column * 4
        stop = row + count
        while row < stop:
            rows = min(stop - row, 32)
            x = source[0] + row * source[1]
            out = target[0] + row * target[1] + column * 4
            configuration = configurations + 64 * rows
            if rows > 16:
                _two(configuration, weight, start, x, out, block_columns * 4, source[1], target[1], depth // TILE_DEPTH)
            else:
                _one(configuration, weight, start, x, out, block_columns * 4, source[1], target[1], depth // TILE_DEPTH)
            row += rows
