"""out[m] = start[m] + scale * sum_k number[code[k]] * x[m, k] over one group of k, 64 columns, a few rows m, in LLVM.

One 64-byte load brings 128 codes of 4 bits: two k of 64 columns. Bits 4 v to 4 v + 3 of a 16-bit word are a code of
column 16 v + lane; lower words belong to the even k. Shifted right by 4 v, a word is an index into a table of bfloat16
numbers: `vpermw` reads its five low bits, so the table holds the sixteen numbers twice and nothing is masked.
`vdpbf16ps` multiplies a pair of numbers with a pair of x, exactly, and adds both to a float32 sum. That is three
instructions for 32 weights; scales meet the sums, once in a group. Figures: docs/performance/cpu.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from moesaic.kernels.codebook_form import CodebookForm
from moesaic.kernels.codebook_scales import INT16, SCALE_BYTES, scales_at, zero_points_at
from moesaic.kernels.packed_block import BFLOATS, FLOAT, INT64, LANES, SUMS, broadcast, load, plus, prefetch

VECTORS = 4
"""Codes of 4 bits in a word of 16, and so vectors of columns in a block."""

BLOCK_COLUMNS = VECTORS * LANES

PAIR_BYTES = 64
"""Of a block, for two k."""

WORDS = ir.VectorType(INT16, 2 * LANES)


def group_of(rows: int, form: CodebookForm) -> Callable[..., None]:
    """The kernel for exactly `rows` rows, at most 4, whose sums take 5 registers each.

    Its arguments are int64: addresses of the group's codes in a block, of its 64 scales, its 64 zero points (if the
    form has them) and the block's 64 factors (if it has them); of the first row's x (bfloat16), what its sums start
    from (float32) and where they go (float32), each with the bytes between rows; the pairs of k in the group, at least
    one.
    """

    @intrinsic
    def group(
        _context: Any,
        _codes: Any,
        _scales: Any,
        _zero_points: Any,
        _factors: Any,
        _x: Any,
        _x_stride: Any,
        _start: Any,
        _start_stride: Any,
        _out: Any,
        _out_stride: Any,
        _pairs: Any,
    ) -> Any:
        def generate(context: Any, b: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
            _generate(b, arguments, rows, form)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 11)), generate

    return group


def _generate(b: ir.IRBuilder, arguments: Sequence[Any], rows: int, form: CodebookForm) -> None:
    codes, scales, zero_points, factors, x, x_stride, start, start_stride, out, out_stride, pairs = arguments
    sums, of_x = _sums(b, (codes, x, x_stride, pairs), rows, form)
    fma = _function(b, "llvm.fma.v16f32", SUMS, SUMS, SUMS, SUMS)
    for v in range(VECTORS):
        scale = scales_at(b, plus(b, scales, LANES * SCALE_BYTES[form.scale] * v), form.scale)
        if form.factor:
            scale = b.fmul(scale, load(b, plus(b, factors, 64 * v), SUMS))
        for m in range(rows):
            total = sums[m, v]
            if form.zero_point:
                above = b.fsub(SUMS([FLOAT(8.0)] * LANES), zero_points_at(b, plus(b, zero_points, LANES * v)))
                total = b.call(fma, [above, of_x[m], total])
            before = load(b, plus(b, b.add(start, b.mul(start_stride, INT64(m))), 64 * v), SUMS)
            target = plus(b, b.add(out, b.mul(out_stride, INT64(m))), 64 * v)
            b.store(b.call(fma, [total, scale, before]), b.inttoptr(target, SUMS.as_pointer()), align=4)


def _sums(
    b: ir.IRBuilder, arguments: Sequence[Any], rows: int, form: CodebookForm
) -> tuple[dict[tuple[int, int], Any], dict[int, Any]]:
    """Of every row m and vector v the sum of numbers times x; of every row the sum of x, if zero points need it."""
    codes, x, x_stride, pairs = arguments
    multiply = _function(b, "llvm.x86.avx512bf16.dpbf16ps.512", SUMS, SUMS, BFLOATS, BFLOATS)
    look_up = _function(b, "llvm.x86.avx512.permvar.hi.512", WORDS, WORDS, WORDS)
    table, ones = WORDS(_bfloat16(form.numbers) * 2), b.bitcast(WORDS(_bfloat16((1.0,)) * 2 * LANES), BFLOATS)
    at = [b.add(x, b.mul(x_stride, INT64(m))) for m in range(rows)]
    entry, loop, done = b.block, b.append_basic_block("pair"), b.append_basic_block("done")
    b.branch(loop)

    b.position_at_end(loop)
    pair = b.phi(INT64)
    pair.add_incoming(INT64(0), entry)
    before = {(m, v): b.phi(SUMS) for m in range(rows) for v in range(VECTORS + form.zero_point)}
    for total in before.values():
        total.add_incoming(SUMS([FLOAT(0.0)] * LANES), entry)
    here = b.add(codes, b.mul(pair, INT64(PAIR_BYTES)))
    prefetch(b, here, 1)
    values = [broadcast(b, b.add(row, b.mul(pair, INT64(4)))) for row in at]
    words = load(b, here, WORDS)
    after = {}
    for v in range(VECTORS + form.zero_point):
        index = b.lshr(words, WORDS([4 * v] * 2 * LANES)) if 0 < v < VECTORS else words
        numbers = b.bitcast(b.call(look_up, [table, index]), BFLOATS) if v < VECTORS else ones
        for m in range(rows):
            after[m, v] = b.call(multiply, [before[m, v], numbers, values[m]])
    following = b.add(pair, INT64(1))
    pair.add_incoming(following, loop)
    for cell, total in before.items():
        total.add_incoming(after[cell], loop)
    b.cbranch(b.icmp_signed("<", following, pairs), loop, done)
    b.position_at_end(done)
    return after, {m: after[m, VECTORS] for m in range(rows) if form.zero_point}


def _bfloat16(numbers: tuple[float, ...]) -> list[int]:
    """The bits of numbers that bfloat16 holds."""
    return [int(bits) >> 16 for bits in np.array(numbers, dtype=np.float32).view(np.uint32)]


def _function(b: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    return cgutils.get_or_insert_function(b.module, ir.FunctionType(result, arguments), name)
