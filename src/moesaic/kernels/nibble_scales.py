"""The scales of 128 columns of weights of 4 bits: read as words of 32 bits, and spread over the columns of a half."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
@no_type_check
def load_words(scales, there, k, words, FORM: gl.constexpr):
    """Of each row the scales of step k, as one or two numbers of 32 bits; those of columns that are not there are 0."""
    BYTES: gl.constexpr = FORM.depth // FORM.group * FORM.scale_bytes
    COUNT: gl.constexpr = BYTES // FORM.word
    first = _word(scales, there, k * COUNT, words)
    if BYTES <= 4:
        for w in gl.static_range(1, COUNT):
            first |= _word(scales, there, k * COUNT + w, words) << (w * 8 * FORM.word)
        return first, first
    else:
        HALF: gl.constexpr = COUNT // 2
        second = _word(scales, there, k * COUNT + HALF, words)
        for w in gl.static_range(1, HALF):
            first |= _word(scales, there, k * COUNT + w, words) << (w * 8 * FORM.word)
            second |= _word(scales, there, k * COUNT + HALF + w, words) << (w * 8 * FORM.word)
        return first, second


@gluon.jit
@no_type_check
def _word(scales, there, at, words):
    found = gl.load(scales + at, mask=there & (at < words), other=0).to(gl.int32)
    BITS: gl.constexpr = scales.dtype.element_ty.primitive_bitwidth
    return found & ((1 << BITS) - 1) if BITS < 32 else found


@gluon.jit
@no_type_check
def spread_scales(words, HALF: gl.constexpr, held: gl.constexpr, FORM: gl.constexpr):
    """The scales of 64 columns in bfloat16: [64, 64], or [64, 1] where they share one."""
    GROUP: gl.constexpr = FORM.group
    WIDE: gl.constexpr = FORM.weight_depth
    GROUPS: gl.constexpr = WIDE // GROUP if GROUP < WIDE else 1
    FIRST: gl.constexpr = HALF * GROUPS if GROUP <= WIDE else 0
    found = _scale(words, FIRST, FORM)[:, None]
    column = gl.arange(0, WIDE, layout=gl.SliceLayout(0, held))[None, :]
    for g in gl.static_range(1, GROUPS):
        found = gl.where(column < g * GROUP, found, _scale(words, FIRST + g, FORM)[:, None])
    return found


@gluon.jit
@no_type_check
def _scale(words, G: gl.constexpr, FORM: gl.constexpr):
    """Number G of a row's scales, exact."""
    SCALE: gl.constexpr = FORM.scale  # triton 3.6 passes no text on that is an attribute
    PER_WORD: gl.constexpr = 4 // FORM.scale_bytes
    word = words[G // PER_WORD]
    bits = word >> (G % PER_WORD * 8 * FORM.scale_bytes)
    if SCALE == "e8m0":  # 0 is 2^-127, and 255 NaN, of which infinity lacks a bit
        bits &= 0xFF
        if FORM.bare:  # times 2^126: none is larger than 2, so none overflows, and 0 is 2^-1
            return ((bits + 126) << 7).to(gl.int16).to(gl.bfloat16, bitcast=True)
        return gl.maximum((bits << 7) | ((bits + 1) >> 8), 0x40).to(gl.int16).to(gl.bfloat16, bitcast=True)
    elif SCALE == "e4m3":  # 127 is NaN
        size = bits & 0x7F
        bits = ((bits & 0x80) << 8) | (size << 4) | (((size + 1) >> 7) * 0x7FC0)
        return bits.to(gl.int16).to(gl.bfloat16, bitcast=True) * 1.329227995784916e36 * FORM.lift
    else:
        return bits.to(gl.int16).to(gl.bfloat16, bitcast=True)
