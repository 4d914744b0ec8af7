"""Codes of 4 bits as E4M3 numbers in registers, four at a time, and the scales of their rows in float32."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_E2M1 = """{{
.reg .b32 t, u;
{sign}
{size}
and.b32 u, u, 0x1C1C1C1C;
lop3.b32 $0, t, 0x80808080, u, 0xEA;
}}"""
"""Sign to bit 7, exponent and mantissa to bits 4 to 2 of an E4M3 number: it is 2^-6 of what it stands for."""

_E2M1_LOW = gl.constexpr(_E2M1.format(sign="shl.b32 t, $1, 4;", size="shl.b32 u, $1, 2;"))
_E2M1_HIGH = gl.constexpr(_E2M1.format(sign="mov.b32 t, $1;", size="shr.b32 u, $1, 2;"))
_INT4_LOW = gl.constexpr("and.b32 $0, $1, 0x0F0F0F0F;")
_INT4_HIGH = gl.constexpr("{\n.reg .b32 t;\nshr.b32 t, $1, 4;\nand.b32 $0, t, 0x0F0F0F0F;\n}")
"""0 to 15 are the bits of an E4M3 number that is 2^-9 of them: the steps of its smallest numbers are even."""


@gluon.jit
@no_type_check
def numbers_in(codes, HIGH: gl.constexpr, WHOLE: gl.constexpr):
    """The numbers in the low or the HIGH bits of bytes, in E4M3: E2M1 times 2^-6, or WHOLE ones from 0 times 2^-9."""
    if WHOLE:
        ASM: gl.constexpr = _INT4_HIGH if HIGH else _INT4_LOW
    else:
        ASM: gl.constexpr = _E2M1_HIGH if HIGH else _E2M1_LOW
    found = gl.inline_asm_elementwise(ASM, "=r,r", [codes], dtype=gl.uint8, is_pure=True, pack=4)
    return found.to(gl.float8e4nv, bitcast=True)


@gluon.jit
@no_type_check
def scale_in(words, G: gl.constexpr, FORM: gl.constexpr):
    """Number G of the scales of each row in a step, [64, 1], exact in float32."""
    SCALE: gl.constexpr = FORM.scale  # triton 3.6 passes no text on that is an attribute
    if SCALE == "e8m0":  # 0 is 2^-127, and 255 NaN
        AT: gl.constexpr = 23 - 8 * G
        bits = (words << AT if AT >= 0 else words >> -AT) & 0x7F800000
        bits = gl.maximum(bits, 0x00400000)
        if not FORM.small:
            bits = gl.where(bits == 0x7F800000, 0x7FC00000, bits)
    else:
        bits = words << 16 if G == 0 else words & -65536
    return bits.to(gl.float32, bitcast=True)
