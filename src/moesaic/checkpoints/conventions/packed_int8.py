"""PackedINT8: four codes of 8 bits in an int32, as compressed-tensors packs W8A16."""

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
from moesaic.quant import INT8, Quantized


@final
@dataclass(frozen=True)
class PackedINT8(Convention):
    """`weight_packed` int32 `[N, ceil(K / 4)]`, byte i of a word the value i plus 128; `weight_shape` int64, N and K.

    `weight_scale` in the shape of the granularity, of one number `[1]`. `weight_g_idx` is read if it orders nothing.
    """

    of: INT8

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("weight_packed", "weight_scale", "weight_shape", "weight_g_idx")

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        packed = matrix.weight("weight_packed", torch.int32)
        rows, columns = matrix.read("weight_shape", (torch.int64, torch.int32), (2,)).tolist()
        if (rows, -(-columns // 4)) != tuple(packed.shape):
            needed = f"what fills weight_packed, {tuple(packed.shape)} words of four"
            raise matrix.fault("weight_shape", f"says ({rows}, {columns})", needed)
        check_order(matrix, "weight_g_idx", columns, self.of.granularity.tile(rows, columns)[1])
        grid = self.of.granularity.grid((rows, columns))
        scale = matrix.scale("weight_scale", FLOATS, grid, *(((1,),) if grid == (1, 1) else ()))
        data = (bytes_of_words(packed)[:, :columns] ^ 128).view(torch.int8)
        return Quantized(replace(self.of, scale=scale.dtype), data, {"scale": scale})

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        kind = stored.format
        if not isinstance(kind, INT8) or replace(self.of, scale=kind.scale) != kind:
            raise self.refuse(kind, f"{self.of!r} with scales of any dtype")
        codes = stored.data.view(torch.uint8) ^ 128
        return {
            "weight_packed": words_of_bytes(pad(codes, (0, -codes.shape[1] % 4))),
            "weight_scale": stored.scales["scale"],
            "weight_shape": torch.tensor(stored.shape),
        }
