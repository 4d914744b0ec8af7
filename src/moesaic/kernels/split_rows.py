"""codes[places[t, k]] = x[t] as sums of two E4M3 numbers times a power of two: a token is split once, written K times.

Of 128 columns the high parts come first, then the low ones: [P, ceil(C / 128) * 256]. Beside them lie the powers of two
[ceil(C / 128) * R, P], of each block two, and with R = 4 behind them 1 / 64 of the sums of what they scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from moesaic.kernels.direct_launch import DirectLaunch
from moesaic.kernels.launching import overlap_launches, wait_for_previous
from moesaic.kernels.whole_numbers import ceil_div, next_power_of_2

BLOCK = 128
"""Columns that a product takes in a step."""

ELEMENTS = 2048
"""Of a program."""


@final
@dataclass(frozen=True, eq=False)
class SplitRows:
    """`codes` [P, blocks * 256] in E4M3 and `beside` [blocks * R, P or a few more] in float32, of `columns`."""

    codes: Tensor
    beside: Tensor
    columns: int

    @classmethod
    def empty(cls, num_rows: int, columns: int, numbers: int, device: torch.device) -> SplitRows:
        """For rows of `columns`; `numbers`: R, 2 or 4."""
        blocks = ceil_div(columns, BLOCK)
        codes = torch.empty(num_rows, blocks * 2 * BLOCK, dtype=torch.float8_e4m3fn, device=device)
        stride = ceil_div(num_rows, 4) * 4  # TMA takes strides of 16 bytes
        return cls(codes, torch.empty(blocks * numbers, stride, dtype=torch.float32, device=device), columns)


def split_rows(
    x: Tensor, places: Tensor | None, row_weights: Tensor | None, top_k: int, num_rows: int, numbers: int
) -> SplitRows:
    """Rows x [T, C] in bfloat16, split. `places` [T * K]: rows of a pair, -1 for none; without them row t is x[t].

    `row_weights` [T, K] multiplies before, rounded to bfloat16. Rows that are nobody's stay undefined; an infinity
    becomes NaN. `numbers`: R, 2 or 4.
    """
    count, columns = x.shape
    out = SplitRows.empty(num_rows, columns, numbers, x.device)
    wide = min(ELEMENTS, max(BLOCK, next_power_of_2(columns)))
    height = max(1, min(ELEMENTS // wide, next_power_of_2(count)))
    overlap = overlap_launches(x.device)
    _split_rows[(ceil_div(count, height), ceil_div(columns, wide))](
        x,
        x.stride(0),
        x if places is None else places,
        x if row_weights is None else row_weights,
        out.codes,
        out.beside,
        count,
        out.beside.stride(0),
        K=top_k,
        COLUMNS=columns,
        PLACED=places is not None,
        SCALED=row_weights is not None,
        NUMBERS=numbers,
        HEIGHT=height,
        WIDE=wide,
        OVERLAP=overlap,
        num_warps=4,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


@DirectLaunch
@triton.jit(do_not_specialize=["count"])
@no_type_check
def _split_rows(
    x, row_stride, places, row_weights, codes, beside, count, stride,
    K: tl.constexpr, COLUMNS: tl.constexpr, PLACED: tl.constexpr, SCALED: tl.constexpr, NUMBERS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    token = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = (token < count)[:, None] & (column < COLUMNS)[None, :]
    at = x + token.to(tl.int64)[:, None] * row_stride + column[None, :]
    values = tl.load(at, mask=inside, other=0.0)
    if SCALED:
        for slot in tl.static_range(K):
            pair = token * K + slot
            weight = tl.load(row_weights + pair, mask=token < count, other=0.0)
            row = tl.load(places + pair, mask=token < count, other=-1)
            scaled = (values.to(tl.float32) * weight[:, None]).to(x.dtype.element_ty)
            parts = _split(scaled.to(tl.float32))
            _store(parts, codes, beside, row, column, stride, COLUMNS, NUMBERS)
    else:
        parts = _split(values.to(tl.float32))
        if PLACED:
            for slot in tl.static_range(K):
                row = tl.load(places + token * K + slot, mask=token < count, other=-1)
                _store(parts, codes, beside, row, column, stride, COLUMNS, NUMBERS)
        else:
            _store(parts, codes, beside, tl.where(token < count, token, -1), column, stride, COLUMNS, NUMBERS)


@triton.jit
@no_type_check
def _split(values):
    """High and low parts of values [R, W] and, of 64 columns each, the power of two and 1 / 64 of the sum."""
    R: tl.constexpr = values.shape[0]
    W: tl.constexpr = values.shape[1]
    grouped = tl.reshape(values, [R * (W // 64), 64])
    size = tl.abs(grouped)
    finite = size < float("inf")
    power, inverse = powers(tl.max(tl.where(finite, size, 0.0), 1))
    high, low = parts_of(grouped, finite, inverse[:, None])
    total = tl.sum(high + low, 1) * 0.015625 * power
    high, low = high.to(tl.float8e4nv), low.to(tl.float8e4nv)
    G: tl.constexpr = W // 64
    return tl.reshape(high, [R, W]), tl.reshape(low, [R, W]), tl.reshape(power, [R, G]), tl.reshape(total, [R, G])


@triton.jit
@no_type_check
def powers(largest):
    """The power of two that leaves `largest` between 128 and 256, and its inverse; below 2^-110 it counts as that."""
    exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 17)
    power = ((exponent - 7) << 23).to(tl.float32, bitcast=True)
    return power, ((261 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def parts_of(values, finite, inverse):
    """Values times `inverse` as a number of E4M3 and that of what is left, in float32; what is not finite as NaN.

    They are rounded here and not by a conversion, of which the way back from E4M3 mixed up its numbers (triton 3.6, 16
    of them in a thread).
    """
    scaled = values * inverse
    high = tl.where(finite, _nearest(scaled), float("nan"))
    return high, _nearest(scaled - high)


@triton.jit
@no_type_check
def _nearest(values):
    """Numbers below 256 to 4 significant bits, ties away from zero; those below 2^-6 to multiples of 2^-9.

    A NaN may become any number: that of a GPU is 0x7FFFFFFF, which the sum carries over into the sign.
    """
    coarse = ((values.to(tl.int32, bitcast=True) + 0x80000) & -0x100000).to(tl.float32, bitcast=True)
    fine = (values + 24576.0) - 24576.0
    return tl.where(tl.abs(values) < 0.015625, fine, coarse)


@triton.jit
@no_type_check
def _store(parts, codes, beside, row, column, stride, COLUMNS: tl.constexpr, NUMBERS: tl.constexpr):
    high, low, power, total = parts
    BLOCKS: tl.constexpr = (COLUMNS + 127) // 128
    held = row >= 0
    row = row.to(tl.int64)
    to = codes + row[:, None] * (BLOCKS * 256) + (column // 128 * 256 + column % 128)[None, :]
    there = held[:, None] & (column < BLOCKS * 128)[None, :]
    tl.store(to, high, mask=there)
    tl.store(to + 128, low, mask=there)
    group = tl.program_id(1) * power.shape[1] + tl.arange(0, power.shape[1])
    line = group // 2 * NUMBERS + group % 2
    to = beside + line.to(tl.int64)[None, :] * stride + row[:, None]
    there = held[:, None] & (group < BLOCKS * 2)[None, :]
    tl.store(to, power, mask=there)
    if NUMBERS == 4:
        tl.store(to + 2 * stride, total, mask=there)
