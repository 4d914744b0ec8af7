"""GPTQWeight: eight codes of one column of outputs in an int32, and zero points that may be one too small."""

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
from moesaic.checkpoints.words import bytes_of_words, check_order, words_of_bytes
from moesaic.errors import CheckpointError
from moesaic.quant import INT4, Quantized
from moesaic.quant.nibbles import pack, unpack


@final
@dataclass(frozen=True)
class GPTQWeight(Convention):
    """`qweight` int32 `[K / 8, N]`, `qzeros` int32 `[ceil(K / g), N / 8]`, `scales` `[ceil(K / g), N]`, `g_idx` `[K]`.

    The value is `(q - zero) * scale`; code i of a word at its bits 4i. `less_one`: the file holds zero - 1 (gptq, v1),
    where 15 is refused: readers take it for 0 or for 16. A symmetric file has zero 8 everywhere, and the format of
    the weights then has no zero point. `g_idx` is read only if it orders nothing. All are transposed.
    """

    of: INT4
    less_one: bool

    @property
    @override
    def suffixes(self) -> tuple[str, ...]:
        return ("qweight", "qzeros", "scales", "g_idx")

    @override
    def read(self, matrix: StoredMatrix) -> Quantized:
        words = matrix.weight("qweight", torch.int32)
        rows, columns = words.shape[1], 8 * words.shape[0]
        _, group = self.of.granularity.tile(rows, columns)
        check_order(matrix, "g_idx", columns, group)
        grid = self.of.granularity.grid((rows, columns))
        scale = matrix.scale("scales", FLOATS, (grid[1], rows)).mT
        zeros = self._zeros(matrix, (grid[1], rows // 8))
        scales = {"scale": scale, **({"zero_point": zeros} if self.of.zero_point else {})}
        return Quantized(replace(self.of, scale=scale.dtype), bytes_of_words(words.mT), scales)

    @override
    def write(self, stored: Quantized) -> Mapping[str, Tensor]:
        kind, (rows, columns) = stored.format, stored.shape
        if not isinstance(kind, INT4) or replace(self.of, scale=kind.scale) != kind:
            raise self.refuse(kind, f"{self.of!r} with scales of any dtype")
        if rows % 8 or columns % 8:
            raise CheckpointError(
                f"a matrix is {stored.shape}, but GPTQ packs eight rows, and eight columns, in a word"
            )
        scale = stored.scales["scale"].mT
        zeros = stored.scales["zero_point"].mT if self.of.zero_point else torch.full_like(scale, 8, dtype=torch.uint8)
        if self.less_one and bool((zeros == 0).any()):
            raise CheckpointError("a zero point is 0, which GPTQ's first version cannot hold: write gptq_v2")
        group = self.of.granularity.tile(rows, columns)[1]
        return {
            "qweight": words_of_bytes(stored.data).mT,
            "qzeros": words_of_bytes(pack(zeros - int(self.less_one))),
            "scales": scale,
            "g_idx": (torch.arange(columns) // group).to(torch.int32),
        }

    def _zeros(self, matrix: StoredMatrix, shape: tuple[int, int]) -> Tensor:
        codes = unpack(bytes_of_words(matrix.read("qzeros", (torch.int32,), shape)))
        if self.less_one and bool((codes == 15).any()):
            raise matrix.fault(
                "qzeros",
                "holds 15",
                "at most 14: readers of version gptq take 15 for a zero of 0 or of 16, gptq_v2 is clear",
            )
        zeros = codes + int(self.less_one)
        if not self.of.zero_point and bool((zeros != 8).any()):
            raise matrix.fault(
                "qzeros", f"holds {int(zeros[zeros != 8][0].item())}", "8 everywhere, since config.json says sym: true"
            )
        return zeros.mT
