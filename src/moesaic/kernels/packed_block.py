"""out[m, :] = bias + W_block @ x[m] for a few rows m and one block of columns of a weight packed in pairs, in LLVM.

A block holds `16 * vectors` columns as `[K / 2][columns][2]` bfloat16 values, so one 64-byte load brings 16 columns
of two k, and `vdpbf16ps` adds both products to a float32 sum. Nothing but the weight is streamed: the sums of all
rows stay in registers, a row's pair of k is broadcast from the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Float32 sums in one 512-bit register."""

PREFETCH_BYTES = 2048
"""How far ahead of its use the weight is asked for. On two Sapphire Rapids cores, cold weights, 4 rows: 118
microseconds for 2 MiB instead of 194, where a sum of the same bytes takes 105 (4096 ahead: 119)."""

INT32, INT64, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
SUMS, PAIRS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BFLOATS = ir.VectorType(_BFloat(), 2 * LANES)


def block_of(rows: int, vectors: int) -> Callable[..., None]:
    """The kernel for exactly `rows` rows and `16 * vectors` columns; `rows * vectors + rows` is at most 30 registers.

    Its arguments are int64: addresses of the block, of the bias (float32), of the first row (bfloat16, K values,
    zero behind the real ones) and of the first output row (float32), with the strides of rows in bytes; K / 2 last.
    """

    @intrinsic
    def block(
        _context: Any, _weight: Any, _bias: Any, _x: Any, _x_stride: Any, _out: Any, _out_stride: Any, _pairs: Any
    ) -> Any:
        def generate(context: Any, b: ir.IRBuilder, _signature: Any, arguments: Any) -> Any:
            _generate(b, arguments, rows, vectors)
            return context.get_dummy_value()

        return types.void(*([types.int64] * 7)), generate

    return block


def _generate(b: ir.IRBuilder, arguments: tuple[Any, ...], rows: int, vectors: int) -> None:
    weight, bias, x, x_stride, out, out_stride, pairs = arguments
    cells = [(m, v) for m in range(rows) for v in range(vectors)]
    multiply = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(SUMS, [SUMS, BFLOATS, BFLOATS]), "llvm.x86.avx512bf16.dpbf16ps.512"
    )
    starts = [load(b, plus(b, bias, 64 * v), SUMS) for v in range(vectors)]
    at = [b.add(x, b.mul(x_stride, INT64(m))) for m in range(rows)]
    entry, loop, done = b.block, b.append_basic_block("pair"), b.append_basic_block("done")
    b.branch(loop)

    b.position_at_end(loop)
    pair = b.phi(INT64)
    pair.add_incoming(INT64(0), entry)
    sums = {cell: b.phi(SUMS) for cell in cells}
    for (_, v), total in sums.items():
        total.add_incoming(starts[v], entry)
    here = b.add(weight, b.mul(pair, INT64(64 * vectors)))
    prefetch(b, here, vectors)
    values = [broadcast(b, b.add(start, b.mul(pair, INT64(4)))) for start in at]
    columns = [b.bitcast(load(b, plus(b, here, 64 * v), PAIRS), BFLOATS) for v in range(vectors)]
    added = {(m, v): b.call(multiply, [sums[m, v], columns[v], values[m]]) for m, v in cells}
    following = b.add(pair, INT64(1))
    pair.add_incoming(following, loop)
    for cell, total in sums.items():
        total.add_incoming(added[cell], loop)
    b.cbranch(b.icmp_signed("<", following, pairs), loop, done)

    b.position_at_end(done)
    for m, v in cells:
        target = plus(b, b.add(out, b.mul(out_stride, INT64(m))), 64 * v)
        b.store(added[m, v], b.inttoptr(target, SUMS.as_pointer()), align=4)


def plus(b: ir.IRBuilder, address: Any, offset: int) -> Any:
    """The address `offset` bytes behind `address`."""
    return b.add(address, INT64(offset))


def load(b: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    """What lies at `address`, wherever that is."""
    return b.load(b.inttoptr(address, kind.as_pointer()), align=1)


def broadcast(b: ir.IRBuilder, address: Any) -> Any:
    """The two bfloat16 values at `address`, in every lane."""
    one = b.insert_element(PAIRS(ir.Undefined), load(b, address, INT32), INT32(0))
    return b.bitcast(b.shuffle_vector(one, PAIRS(ir.Undefined), PAIRS([0] * LANES)), BFLOATS)


def prefetch(b: ir.IRBuilder, here: Any, vectors: int) -> None:
    """Ask for a later part of the weight; an address behind its end is harmless, the processor drops it."""
    byte = ir.IntType(8).as_pointer()
    fetch = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32]), "llvm.prefetch.p0"
    )
    for v in range(vectors):
        address = b.inttoptr(plus(b, here, PREFETCH_BYTES + 64 * v), byte)
        b.call(fetch, [address, INT32(0), INT32(3), INT32(1)])  # to be read, kept in all caches, data
