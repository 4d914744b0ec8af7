"""Codes as numbers: exact in bfloat16 and float16. FAST is for a GPU that has the instructions, in bfloat16.

Without it the bits of a code are moved to their places in a float16 number, and a product makes up for the other bias
of the exponent. FAST does the same for two numbers in a register: a weight of 4 bits costs 1.5 (INT4) or 2.5 (FP4)
instructions instead of some 8, where 3.5 are all there is time for if the memory is to be the limit (4.28 TB/s, 132
multiprocessors of 128 lanes).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

_E2M1 = tl.constexpr("""{
.reg .b32 t, u, v;
prmt.b32 t, $4, 0, 0x1404;
shl.b32 u, t, 4;
shr.b32 v, u, 6;
and.b32 v, v, 0x01C001C0;
lop3.b32 $0, u, 0x80008000, v, 0xEA;
shr.b32 v, t, 6;
and.b32 v, v, 0x01C001C0;
lop3.b32 $2, t, 0x80008000, v, 0xEA;
prmt.b32 t, $4, 0, 0x3424;
shl.b32 u, t, 4;
shr.b32 v, u, 6;
and.b32 v, v, 0x01C001C0;
lop3.b32 $1, u, 0x80008000, v, 0xEA;
shr.b32 v, t, 6;
and.b32 v, v, 0x01C001C0;
lop3.b32 $3, t, 0x80008000, v, 0xEA;
mov.b32 u, 0x7E807E80;
mov.b32 v, 0x80008000;
fma.rn.bf16x2 $0, $0, u, v;
fma.rn.bf16x2 $1, $1, u, v;
fma.rn.bf16x2 $2, $2, u, v;
fma.rn.bf16x2 $3, $3, u, v;
}""")
"""Sign to bit 15, exponent and mantissa to bits 8 to 6 of a bfloat16 number, times 2^126."""

_BARE_E2M1 = tl.constexpr(_E2M1.value[: _E2M1.value.index("mov.b32 u, 0x7E80")] + "}")
"""The same without the product that makes up for 2^126."""

_INT4 = tl.constexpr("""{
.reg .b32 t, u, v;
prmt.b32 t, $4, 0, 0x4140;
lop3.b32 $0, t, 0x000F000F, 0x43004300, 0xEA;
shr.b32 t, t, 4;
lop3.b32 $2, t, 0x000F000F, 0x43004300, 0xEA;
prmt.b32 t, $4, 0, 0x4342;
lop3.b32 $1, t, 0x000F000F, 0x43004300, 0xEA;
shr.b32 t, t, 4;
lop3.b32 $3, t, 0x000F000F, 0x43004300, 0xEA;
mov.b32 u, 0x3F803F80;
mov.b32 v, 0xC308C308;
fma.rn.bf16x2 $0, $0, u, v;
fma.rn.bf16x2 $1, $1, u, v;
fma.rn.bf16x2 $2, $2, u, v;
fma.rn.bf16x2 $3, $3, u, v;
}""")
"""128 + q has q in its last bits; less 136 it is q - 8."""


@triton.jit
@no_type_check
def two_of(packed, CODE: tl.constexpr, DTYPE: tl.constexpr, FAST: tl.constexpr, BARE: tl.constexpr):
    """The numbers in the low and in the high bits of bytes; int4 less 8; BARE, of FAST: E2M1 times 2^-126."""
    if FAST and DTYPE == tl.bfloat16:  # noqa: SIM300 - triton compares a constexpr with a dtype, not the reverse
        return tl.inline_asm_elementwise(
            asm=_BARE_E2M1 if BARE else _E2M1 if CODE == "e2m1" else _INT4,
            constraints="=&r,=&r,=&r,=&r,r",
            args=[packed],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        return _small(packed & 15, CODE, DTYPE), _small(packed >> 4, CODE, DTYPE)


@triton.jit
@no_type_check
def one_of(codes, CODE: tl.constexpr, DTYPE: tl.constexpr):
    """The number in each byte; bytes of E4M3 come as such only where the hardware does not know it."""
    if codes.dtype == DTYPE:
        return codes
    elif CODE == "int8" or codes.dtype != tl.uint8:
        return codes.to(DTYPE)
    else:
        return e4m3(codes).to(DTYPE)


@triton.jit
@no_type_check
def e4m3(codes):
    """In float16, exact; 127 is NaN."""
    bits = ((codes & 0x80).to(tl.uint16) << 8) | ((codes & 0x7F).to(tl.uint16) << 7)
    values = bits.to(tl.float16, bitcast=True) * 256.0
    return tl.where((codes & 0x7F) == 0x7F, float("nan"), values)


@triton.jit
@no_type_check
def e8m0(codes):
    """2^(code - 127) in float32; 255 is NaN."""
    bits = codes.to(tl.int32) << 23
    bits = tl.where(codes == 0, 0x00400000, bits)
    return tl.where(codes == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
@no_type_check
def _small(codes, CODE: tl.constexpr, DTYPE: tl.constexpr):
    if CODE == "int4":
        return (codes.to(tl.int16) - 8).to(DTYPE)
    else:
        bits = ((codes & 8).to(tl.uint16) << 12) | ((codes & 7).to(tl.uint16) << 9)
        return (bits.to(tl.float16, bitcast=True) * 16384.0).to(DTYPE)
