"""Wire: a token with its routing as one row of bytes, so that one exchange moves all of it in any dtype.

gloo, for instance, knows no float8. Dimensions: R rows, H hidden size, K slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from moesaic.batches import Routing, StandardBatch

ALIGNMENT = 16
"""Bytes, of which each part of a row starts at a multiple: hidden sizes are rounded up on their way and cut back."""


@final
@dataclass(frozen=True)
class Wire:
    """What a row of bytes holds: `hidden_size` values of `dtype`, then `top_k` ids (int32) and weights."""

    hidden_size: int
    top_k: int
    dtype: torch.dtype
    weight_dtype: torch.dtype = torch.float32

    @property
    def num_bytes(self) -> int:
        """Of one row."""
        return self._starts[3]

    @property
    def _starts(self) -> tuple[int, int, int, int]:
        """Where the hidden state, the ids, the weights and the next row begin."""
        sizes = (
            self.hidden_size * self.dtype.itemsize,
            self.top_k * torch.int32.itemsize,
            self.top_k * self.weight_dtype.itemsize,
        )
        first, second, third = (-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
        return 0, first, first + second, first + second + third

    def pack(
        self, hidden_states: Float[Tensor, "R H"], ids: Int[Tensor, "R K"], weights: Float[Tensor, "R K"]
    ) -> UInt8[Tensor, "R num_bytes"]:
        """The rows as bytes; those between two parts are zero."""
        packed = torch.zeros(len(ids), self.num_bytes, dtype=torch.uint8, device=ids.device)
        for start, part in zip(self._starts, (hidden_states, ids.int(), weights), strict=False):
            if part.numel():
                part_bytes = part.contiguous().view(torch.uint8)
                packed[:, start : start + part_bytes.shape[1]] = part_bytes
        return packed

    def unpack(self, packed: UInt8[Tensor, "R num_bytes"]) -> StandardBatch:
        """The rows again, as views of `packed`: their stride is that of the bytes."""
        hidden, ids, weights, _ = self._starts
        return StandardBatch(
            _part(packed, hidden, self.hidden_size, self.dtype),
            Routing(_part(packed, ids, self.top_k, torch.int32), _part(packed, weights, self.top_k, self.weight_dtype)),
        )


def _part(packed: Tensor, start: int, length: int, dtype: torch.dtype) -> Tensor:
    """`[R, length]` of `dtype`, beginning at byte `start` of each row."""
    values = packed.view(dtype)
    return values[:, start // dtype.itemsize :][:, :length]
