"""Rows as FP8 on their way: E4M3 codes with a float32 scale for 128 columns, made and read back in registers.

The arithmetic is that of `quant/fp8.py`, bit for bit: one division, rounded to nearest, ties to even. A value that is
not finite takes part in no scale and becomes NaN. Needs the conversions of sm_89 and later.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from moesaic.kernels.peer_flags import row_in
from moesaic.kernels.round_rows import scale_of

GROUP = tl.constexpr(128)
"""Columns that share a scale."""


@triton.jit
@no_type_check
def codes_of(values, BLOCK: tl.constexpr):
    """The codes [BLOCK] of float32 values, and their scales [BLOCK // 128]; zeros stand for columns past the last."""
    finite = tl.abs(values) < float("inf")
    grouped = tl.reshape(tl.where(finite, values, 0.0), [BLOCK // GROUP, GROUP])
    scales = scale_of(tl.max(tl.abs(grouped), 1), 448.0, "float32")
    quotients = tl.reshape(tl.div_rn(grouped, scales[:, None]), [BLOCK])
    return tl.where(finite, quotients, float("nan")).to(tl.float8e4nv), scales


@triton.jit
@no_type_check
def values_of(codes, scales, BLOCK: tl.constexpr):
    """What `codes_of` made of float32 values, in float32."""
    grouped = tl.reshape(codes.to(tl.float32), [BLOCK // GROUP, GROUP])
    return tl.reshape(grouped * scales[:, None], [BLOCK])


@triton.jit
@no_type_check
def store_codes(
    address, number, codes, scales, start, needed,
    H: tl.constexpr, STRIDE: tl.constexpr, SCALES_AT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Columns from `start` on of row `number` of rows of STRIDE bytes that begin at `address`, if `needed`."""
    column = start + tl.arange(0, BLOCK)
    group = start // GROUP + tl.arange(0, BLOCK // GROUP)
    beside = row_in(address + SCALES_AT, number, STRIDE, tl.float32)
    tl.store(beside + group, scales, mask=(group * GROUP < H) & needed)
    row = row_in(address, number, STRIDE, tl.uint8)
    tl.store(row + column, codes.to(tl.uint8, bitcast=True), mask=(column < H) & needed)


@triton.jit
@no_type_check
def load_values(
    address, number, start, H: tl.constexpr, STRIDE: tl.constexpr, SCALES_AT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The numbers [BLOCK] in float32 of what `store_codes` stored."""
    column = start + tl.arange(0, BLOCK)
    group = start // GROUP + tl.arange(0, BLOCK // GROUP)
    beside = row_in(address + SCALES_AT, number, STRIDE, tl.float32)
    scales = tl.load(beside + group, mask=group * GROUP < H, other=0.0)
    row = row_in(address, number, STRIDE, tl.uint8)
    codes = tl.load(row + column, mask=column < H, other=0)
    return values_of(codes.to(tl.float8e4nv, bitcast=True), scales, BLOCK)
