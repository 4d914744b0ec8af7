"""out[r] = W[e(r)] @ x[r] + b[e(r)] for the rows of many experts in one parallel loop, bfloat16 weights, float32 sums.

The weights are read where oneDNN packed them, in blocks of 32 or 64 columns (`packed_block.py`), once for every 12
or 6 rows of an expert; all cores share all blocks of all experts. Numba compiles it at the first call. Figures:
docs/performance/cpu.md.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from moesaic.errors import BackendError
from moesaic.kernels.packed_block import block_of
from moesaic.kernels.parallel_loop import as_many_threads_as_torch, parallel_loop

_wide_1, _wide_2, _wide_3, _wide_4, _wide_5, _wide_6 = (block_of(rows, 4) for rows in (1, 2, 3, 4, 5, 6))
_slim_1, _slim_2, _slim_3, _slim_4, _slim_6, _slim_8, _slim_12 = (block_of(r, 2) for r in (1, 2, 3, 4, 6, 8, 12))


def packed_product(
    weights: Tensor, biases: Tensor, groups: list[tuple[int, int, int]], x: Tensor, out: Tensor, block_columns: int
) -> None:
    """Write the rows of every group of `out`, on as many cores as torch uses.

    `weights`: int64 `[E]`, the address of each expert's packed weight. `biases`: float32 `[E, N]`. `groups`: (expert,
    its first row, its number of rows). `x`: bfloat16 `[S, K]`, K as padded in the weight, and zero there. `out`:
    float32 `[S, N]`, N a multiple of `block_columns`, which is 32 or 64. Shapes are the caller's business.
    """
    if (x.dtype, out.dtype, biases.dtype) != (torch.bfloat16, torch.float32, torch.float32):
        raise BackendError(f"x, out and biases are {x.dtype}, {out.dtype} and {biases.dtype}: memory would be misread")
    with as_many_threads_as_torch():
        _product(
            np.array(groups, dtype=np.int64).reshape(-1, 3),
            weights.numpy(),
            (biases.data_ptr(), 4 * biases.stride(0)),
            (x.data_ptr(), 2 * x.stride(0)),
            (out.data_ptr(), 4 * out.stride(0)),
            (x.shape[1] // 2, out.shape[1] // block_columns, block_columns),
        )


@parallel_loop
@no_type_check
def _product(groups, weights, bias, source, target, shape):
    """`bias`, `source`, `target`: address and bytes between rows. `shape`: pairs of k, blocks, columns of a block."""
    pairs, blocks, columns = shape
    for task in prange(len(groups) * blocks):
        group = task // blocks
        block = task - group * blocks
        expert, row, count = groups[group]
        weight = weights[expert] + block * columns * pairs * 4
        start = bias[0] + expert * bias[1] + block * columns * 4
        stop = row + count
        while row < stop:
            x = source[0] + row * source[1]
            out = target[0] + row * target[1] + block * columns * 4
            if columns == 64:
                row += _wide(stop - row, weight, start, x, source[1], out, target[1], pairs)
            else:
                row += _slim(stop - row, weight, start, x, source[1], out, target[1], pairs)


@njit(nogil=True)
@no_type_check
def _wide(left, weight, bias, x, x_stride, out, out_stride, pairs):
    """Compute as many of the `left` rows as one kernel holds, and say how many."""
    if left >= 6:
        _wide_6(weight, bias, x, x_stride, out, out_stride, pairs)
        return 6
    if left == 5:
        _wide_5(weight, bias, x, x_stride, out, out_stride, pairs)
    elif left == 4:
        _wide_4(weight, bias, x, x_stride, out, out_stride, pairs)
    elif left == 3:
        _wide_3(weight, bias, x, x_stride, out, out_stride, pairs)
    elif left == 2:
        _wide_2(weight, bias, x, x_stride, out, out_stride, pairs)
    else:
        _wide_1(weight, bias, x, x_stride, out, out_stride, pairs)
    return left


@njit(nogil=True)
@no_type_check
def _slim(left, weight, bias, x, x_stride, out, out_stride, pairs):
    """As `_wide`, for blocks of 32 columns."""
    if left >= 12:
        _slim_12(weight, bias, x, x_stride, out, out_stride, pairs)
        return 12
    if left >= 8:
        _slim_8(weight, bias, x, x_stride, out, out_stride, pairs)
        return 8
    if left >= 6:
        _slim_6(weight, bias, x, x_stride, out, out_stride, pairs)
        return 6
    if left >= 4:
        _slim_4(weight, bias, x, x_stride, out, out_stride, pairs)
        return 4
    if left == 3:
        _slim_3(weight, bias, x, x_stride, out, out_stride, pairs)
    elif left == 2:
        _slim_2(weight, bias, x, x_stride, out, out_stride, pairs)
    else:
        _slim_1(weight, bias, x, x_stride, out, out_stride, pairs)
    return left
