"""Codes of 4 bits as bfloat16 numbers in registers: as `stored_codes.py`, but one half of each byte at a time."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

_E2M1 = """{{
.reg .b32 t, u, v, w;
cvt.u32.u16 t, $1;
prmt.b32 t, t, 0, 0x1404;{shift}
shr.b32 u, t, 6;
and.b32 u, u, 0x01C001C0;
lop3.b32 $0, t, 0x80008000, u, 0xEA;{scale}
}}"""
"""Sign to bit 15, exponent and mantissa to bits 8 to 6 of a bfloat16 number: it is 2^-126 of what it stands for."""

_INT4 = """{{
.reg .b32 t, v, w;
cvt.u32.u16 t, $1;
prmt.b32 t, t, 0, 0x4140;{shift}
lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
mov.b32 v, 0x3F803F80;
mov.b32 w, 0xC308C308;
fma.rn.bf16x2 $0, t, v, w;
}}"""
"""128 + q has q in its last bits; less 136 it is q - 8."""

_LOW, _SCALE = "\nshl.b32 t, t, 4;", "\nmov.b32 v, 0x7E807E80;\nmov.b32 w, 0x80008000;\nfma.rn.bf16x2 $0, $0, v, w;"
_E2M1_LOW = tl.constexpr(_E2M1.format(shift=_LOW, scale=_SCALE))
_E2M1_HIGH = tl.constexpr(_E2M1.format(shift="", scale=_SCALE))
_BARE_LOW = tl.constexpr(_E2M1.format(shift=_LOW, scale=""))
_BARE_HIGH = tl.constexpr(_E2M1.format(shift="", scale=""))
_INT4_LOW = tl.constexpr(_INT4.format(shift=""))
_INT4_HIGH = tl.constexpr(_INT4.format(shift="\nshr.b32 t, t, 4;"))


@triton.jit
@no_type_check
def half_of(codes, HIGH: tl.constexpr, WHOLE: tl.constexpr, BARE: tl.constexpr):
    """The numbers in the low or the HIGH bits of bytes: E2M1, or WHOLE numbers less 8. Not moved by the compiler.

    BARE: E2M1 numbers times 2^-126, which their scales make up for.
    """
    if WHOLE:
        ASM: tl.constexpr = _INT4_HIGH if HIGH else _INT4_LOW
    elif BARE:
        ASM: tl.constexpr = _BARE_HIGH if HIGH else _BARE_LOW
    else:
        ASM: tl.constexpr = _E2M1_HIGH if HIGH else _E2M1_LOW
    return tl.inline_asm_elementwise(
        asm=ASM, constraints="=r,h", args=[codes], dtype=tl.bfloat16, is_pure=False, pack=2
    )
