"""The scales of 128 columns of weights of 4 bits: copied by boxes, read as words, and spread over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, no_type_check

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from moesaic.kernels.hopper_form import WEIGHT_ROWS

if TYPE_CHECKING:
    from moesaic.kernels.stored_experts import Stored

_WORDS = {2: torch.int16, 4: torch.int32}
"""What holds a row's scales of a step: PLANES of these."""


def boxes_of(stored: Stored) -> Any:
    """The scales of `stored`, by boxes, for TMA to copy those of two neighbours for one step."""
    lines = stored.scales.shape[0] * stored.scales.shape[1]
    rows, per_plane = stored.scales.shape[-2:]
    words = stored.scales.view(lines, -1).view(_WORDS[per_plane * stored.scales.itemsize])
    block = [1, 2 * stored.form.planes * rows]
    return TensorDescriptor.from_tensor(words, block, gl.NVMMASharedLayout(0, 8 * words.itemsize, 2))


@gluon.jit
@no_type_check
def words_of(boxes, s, SECOND: gl.constexpr, WHO: gl.constexpr, layout: gl.constexpr, FORM: gl.constexpr):
    """Of each row of a consumer's first or SECOND box the scales of a step, [64, 1], as one or two words of 32 bits."""
    PLANES: gl.constexpr = FORM.planes
    NEXT: gl.constexpr = 1 if SECOND else 0
    place = boxes.index(2 * s + (NEXT if FORM.gated else WHO))
    AT: gl.constexpr = (WHO if FORM.gated else NEXT) * PLANES * WEIGHT_ROWS
    first = _word(place, AT, layout)
    return first, first if PLANES == 1 else _word(place, AT + WEIGHT_ROWS, layout)


@gluon.jit
@no_type_check
def _word(place, AT: gl.constexpr, layout: gl.constexpr):
    found = place.slice(AT, WEIGHT_ROWS, dim=1).permute((1, 0)).load(layout).to(gl.int32)
    return found & 0xFFFF if place.dtype == gl.int16 else found


@gluon.jit
@no_type_check
def spread_scales(words, HALF: gl.constexpr, held: gl.constexpr, FORM: gl.constexpr):
    """The scales of 64 columns in bfloat16: [64, 64], or [64, 1] where they share one."""
    GROUP: gl.constexpr = FORM.group
    WIDE: gl.constexpr = FORM.weight_depth
    GROUPS: gl.constexpr = WIDE // GROUP if GROUP < WIDE else 1
    FIRST: gl.constexpr = HALF * GROUPS if GROUP <= WIDE else 0
    found = _scale(words, FIRST, FORM)
    column = gl.arange(0, WIDE, layout=gl.SliceLayout(0, held))[None, :]
    for g in gl.static_range(1, GROUPS):
        found = gl.where(column < g * GROUP, found, _scale(words, FIRST + g, FORM))
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
