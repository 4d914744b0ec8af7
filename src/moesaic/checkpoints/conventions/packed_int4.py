"""PackedINT4: eight codes of 4 bits in an int32, as compressed-tensors packs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from moesaic.checkpoints.conventions.base import Convention
from moesaic.checkpoints.conventions.scaled import FLOATS
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.checkpoints.words import bytes_of_words, check_order, words_of_bytes
from moesaic.quant import INT4, Quantized
from moesaic.quant.nibbles import pack, unpack


@final
@dataclass(frozen=True)
class PackedINT4(Convention):
    """`weight_packed` int32 `[N, ceil(K / 8)]`, code i of a word at its bits 4i; `weight_shape` int64, N and K.

    `weight_scale` `[N, ceil(K / g)]` in float32, bfloat16 or float16; `weight_zero_point`, if the format has one,
    int32 `[ceil(N / 8), ceil(K / g)]`, packed along the rows. The codes are those of the format: 8 is added on both
    sides. A `weight_g_idx` (groups in the order of activations) is read only if it orders nothing.
    """

    of: INT4

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        zero = ("weight_zero_point",) if self.of.zero_point else ()
        return ("weight_packed", "weight_scale", "weight_shape", "weight_g_idx", *zero)

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        packed = matrix.weight("weight_packed", torch.int32)
        rows, columns = matrix.read("weight_shape", (torch.int64, torch.int32), (2,)).tolist()
        if (rows, -(-columns // 8)) != tuple(packed.shape) or columns % 2:
            needed = f"{packed.shape[0]} rows and an even number of columns that fills the {packed.shape[1]} words"
            raise matrix.fault("weight_shape", f"says ({rows}, {columns})", f"{needed} of weight_packed")
        grid = self.of.granularity.grid((rows, columns))
        check_order(matrix, "weight_g_idx", columns, self.of.granularity.tile(rows, columns)[1])
        scale = matrix.scale("weight_scale", FLOATS, grid)
        scales = {"scale": scale}
        if self.of.zero_point:
            words = matrix.read("weight_zero_point", (torch.int32,), (-(-rows // 8), grid[1]))
            scales["zero_point"] = unpack(bytes_of_words(words.mT))[:, :rows].mT
        data = bytes_of_words(packed)[:, : columns // 2]
        return Quantized(replace(self.of, scale=scale.dtype), data, scales)

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        kind = stored.format
        if not isinstance(kind, INT4) or replace(self.of, scale=kind.scale) != kind:
            raise self.refuse(kind, f"{self.of!r} with scales of any dtype")
        tensors = {
            "weight_packed": words_of_bytes(pad(stored.data, (0, -stored.data.shape[1] % 4))),
            "weight_scale": stored.scales["scale"],
            "weight_shape": torch.tensor(stored.shape),
        }
        if self.of.zero_point:
            codes = stored.scales["zero_point"].mT
            tensors["weight_zero_point"] = words_of_bytes(pack(pad(codes, (0, -codes.shape[1] % 8)))).mT
        return tensors
