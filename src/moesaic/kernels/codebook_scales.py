"""Sixteen scales as they are stored, read into float32 lanes, in LLVM: float32, bfloat16, float16, E8M0, E4M3.

Subnormal codes are read right whatever the processor does with subnormal float32: none is made on the way, but for the
E8M0 code 0, which is 2^-127. A code that stands for no number becomes NaN.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from moesaic.kernels.codebook_form import ScaleKind
from moesaic.kernels.packed_block import FLOAT, INT32, LANES, PAIRS, SUMS, load

INT8, INT16 = ir.IntType(8), ir.IntType(16)
BYTES, WORDS, HALVES = (ir.VectorType(kind, LANES) for kind in (INT8, INT16, ir.HalfType()))
NAN = 0x7FC00000

SCALE_BYTES: dict[ScaleKind, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "e8m0": 1, "e4m3": 1}
"""Of one scale."""


def scales_at(b: ir.IRBuilder, address: Any, kind: ScaleKind) -> Any:
    """The 16 scales of that kind from `address` on, as float32."""
    match kind:
        case "float32":
            return load(b, address, SUMS)
        case "bfloat16":
            return b.bitcast(b.shl(b.zext(load(b, address, WORDS), PAIRS), _lanes(16)), SUMS)
        case "float16":
            return b.fpext(load(b, address, HALVES), SUMS)
        case "e8m0":
            code = b.zext(load(b, address, BYTES), PAIRS)
            power = b.shl(code, _lanes(23))
            power = b.select(b.icmp_unsigned("==", code, _lanes(0)), _lanes(1 << 22), power)
            return b.bitcast(b.select(b.icmp_unsigned("==", code, _lanes(255)), _lanes(NAN), power), SUMS)
        case "e4m3":
            return _e4m3(b, b.zext(load(b, address, BYTES), ir.VectorType(INT16, LANES)))


def zero_points_at(b: ir.IRBuilder, address: Any) -> Any:
    """The 16 zero points from `address` on, as float32."""
    return b.uitofp(load(b, address, BYTES), SUMS)


def _e4m3(b: ir.IRBuilder, code: Any) -> Any:
    """Exponent and mantissa moved to their places in a float16, whose bias is 8 more: hence 256."""
    size = b.and_(code, WORDS([0x7F] * LANES))
    half = b.or_(b.shl(size, WORDS([7] * LANES)), b.shl(b.and_(code, WORDS([0x80] * LANES)), WORDS([8] * LANES)))
    value = b.fmul(b.fpext(b.bitcast(half, HALVES), SUMS), SUMS([FLOAT(256.0)] * LANES))
    missing = b.icmp_unsigned("==", size, WORDS([0x7F] * LANES))
    return b.select(missing, b.bitcast(_lanes(NAN), SUMS), value)


def _lanes(number: int) -> Any:
    return PAIRS([INT32(number)] * LANES)
