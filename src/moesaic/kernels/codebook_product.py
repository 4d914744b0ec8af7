"""out[r] = W[e(r)] @ x[r] + b[e(r)] for the rows of many experts in one parallel loop, weights of 4 bits in a codebook.

Each task is one expert and 64 columns, whose codes (`codebook_block.py`) lie one after the other and are read once for
every 4 rows. Numba compiles the loop of a form at its first call (2 s). Figures: docs/performance/cpu.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from moesaic.errors import BackendError
from moesaic.kernels.codebook_block import BLOCK_COLUMNS, PAIR_BYTES, group_of
from moesaic.kernels.codebook_form import FORMS, CodebookForm
from moesaic.kernels.codebook_scales import SCALE_BYTES
from moesaic.kernels.parallel_loop import parallel_loop


def codebook_product(
    form: CodebookForm, weight: tuple[int, ...], groups: list[tuple[int, int, int]], x: Tensor, out: Tensor
) -> None:
    """Write the rows of every group of `out`, on as many threads as Numba uses.

    `weight`: the addresses of codes uint8 `[E, B, K / 2, 64]`, scales `[E, B, G, 64]`, zero points uint8
    `[E, B, G, 64]` and factors float32 `[E, B, 64]` (any number where the form has none) and biases float32
    `[E, B, 64]`; then B, K / 2 and the pairs of k in a group. `groups`: (expert, its first row, its number of rows).
    `x`: bfloat16 `[S, K]`. `out`: float32 `[S, 64 B]`. Shapes are the caller's business.
    """
    (x_stride, one), (out_stride, also_one) = x.stride(), out.stride()
    if (x.dtype, out.dtype, one, also_one) != (torch.bfloat16, torch.float32, 1, 1):
        raise BackendError(f"x and out are {x.dtype} and {out.dtype}, of strides {x.stride()} and {out.stride()}")
    tasks = np.array(groups, dtype=np.int64).reshape(-1, 3)
    _PRODUCTS[form](tasks, weight, x.data_ptr(), 2 * x_stride, out.data_ptr(), 4 * out_stride)


def _product_of(form: CodebookForm) -> Callable[..., None]:
    one, two, three, four = (_rows_of(rows, form) for rows in (1, 2, 3, 4))
    scale_bytes = BLOCK_COLUMNS * SCALE_BYTES[form.scale]

    @parallel_loop
    @no_type_check
    def product(groups, weight, x, x_stride, out, out_stride):
        codes, scales, zero_points, factors, biases, blocks, pairs, group_pairs = weight
        depth = (pairs + group_pairs - 1) // group_pairs
        for task in prange(len(groups) * blocks):
            group = task // blocks
            column = task - group * blocks
            expert, row, count = groups[group]
            block = expert * blocks + column
            at = (
                codes + block * pairs * PAIR_BYTES,
                scales + block * depth * scale_bytes,
                zero_points + block * depth * BLOCK_COLUMNS,
                factors + block * BLOCK_COLUMNS * 4,
                biases + block * BLOCK_COLUMNS * 4,
            )
            stop = row + count
            while row < stop:
                source = x + row * x_stride
                target = out + row * out_stride + column * BLOCK_COLUMNS * 4
                left = stop - row
                if left >= 4:
                    four(at, source, x_stride, target, out_stride, pairs, group_pairs)
                elif left == 3:
                    three(at, source, x_stride, target, out_stride, pairs, group_pairs)
                elif left == 2:
                    two(at, source, x_stride, target, out_stride, pairs, group_pairs)
                else:
                    one(at, source, x_stride, target, out_stride, pairs, group_pairs)
                row += min(left, 4)

    return product


def _rows_of(rows: int, form: CodebookForm) -> Any:
    """The loop over the groups of K for so many rows: the first sum starts from the bias, the others go on."""
    group = group_of(rows, form)
    scale_bytes = BLOCK_COLUMNS * SCALE_BYTES[form.scale]

    @njit(nogil=True)
    @no_type_check
    def loop(at, x, x_stride, out, out_stride, pairs, group_pairs):
        codes, scales, zero_points, factors, start = at
        start_stride = 0
        done = 0
        while done < pairs:
            now = min(group_pairs, pairs - done)
            group(codes, scales, zero_points, factors, x, x_stride, start, start_stride, out, out_stride, now)
            start, start_stride = out, out_stride
            done += now
            codes += now * PAIR_BYTES
            x += now * 4
            scales += scale_bytes
            zero_points += BLOCK_COLUMNS

    return loop


_PRODUCTS = {form: _product_of(form) for form in FORMS}
