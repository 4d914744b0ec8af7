"""AWQWeight: eight codes of one row of inputs in an int32, in AutoAWQ's order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.conventions.scaled import FLOATS
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.checkpoints.words import bytes_of_words, words_of_bytes
from moesaic.errors import CheckpointError
from moesaic.quant import INT4, Quantized
from moesaic.quant.nibbles import pack, unpack

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours the code at bits 4i of a word is."""

INVERSE = (0, 4, 1, 5, 2, 6, 3, 7)
"""At which bits, over 4, each of eight neighbours is."""


@final
@dataclass(frozen=True)
class AWQWeight(Convention):
    """`qweight` int32 `[K, N / 8]`, `qzeros` int32 `[ceil(K / g), N / 8]`, `scales` `[ceil(K / g), N]`.

    The value is `(q - zero) * scale`. All three are transposed, one expert at a time. Source: AutoAWQ, version gemm.
    """

    of: INT4

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("qweight", "qzeros", "scales")

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        words = matrix.weight("qweight", torch.int32)
        columns, rows = words.shape[0], 8 * words.shape[1]
        if columns % 2:
            raise matrix.fault("qweight", f"has {columns} rows (inputs)", "an even number of them")
        groups = self.of.granularity.grid((rows, columns))[1]
        scale = matrix.scale("scales", FLOATS, (groups, rows)).mT
        zeros = _in_order(matrix.read("qzeros", (torch.int32,), (groups, rows // 8))).mT
        data = pack(_in_order(words).mT)
        return Quantized(replace(self.of, scale=scale.dtype), data, {"scale": scale, "zero_point": zeros})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        kind = stored.format
        if not isinstance(kind, INT4) or replace(self.of, scale=kind.scale) != kind:
            raise self.refuse(kind, f"{self.of!r} with scales of any dtype")
        if stored.shape[0] % 8:
            raise CheckpointError(f"a matrix has {stored.shape[0]} rows, but AWQ packs eight of them in a word")
        return {
            "qweight": _packed(unpack(stored.data).mT),
            "qzeros": _packed(stored.scales["zero_point"].mT),
            "scales": stored.scales["scale"].mT,
        }


def _in_order(words: Tensor) -> Tensor:
    """int32 `[..., W]` as codes `[..., 8 W]`."""
    return unpack(bytes_of_words(words)).unflatten(-1, (-1, 8))[..., INVERSE].flatten(-2)


def _packed(codes: Tensor) -> Tensor:
    """The opposite of `_in_order`."""
    return words_of_bytes(pack(codes.unflatten(-1, (-1, 8))[..., ORDER].flatten(-2)))
