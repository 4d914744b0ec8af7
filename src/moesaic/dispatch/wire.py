"""Wire: a token with its routing as one row of bytes, so that one exchange moves all of it in any dtype.

gloo, for instance, knows no float8. Dimensions: R rows, H hidden size, K slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import final

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from moesaic.batches import Routing, StandardBatch
from moesaic.dispatch.coded_rows import codes_and_scales
from moesaic.quant import FP8, Format, PerGroup, Plain, Quantized

WIRES: tuple[Format, ...] = (Plain(), FP8(PerGroup(128)))
"""As what hidden states may travel: as they are, or as E4M3 codes with a float32 scale for 128 columns."""

CODED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What hidden states may be that travel as codes."""

ALIGNMENT = 16
"""Bytes, of which each part of a row starts at a multiple: hidden sizes are rounded up on their way and cut back."""


@final
@dataclass(frozen=True)
class Wire:
    """What a row of bytes holds: `hidden_size` values as `format` stores them, then `top_k` ids (int32) and weights.

    `dtype`: of the hidden states, before and after.
    """

    hidden_size: int
    top_k: int
    dtype: torch.dtype
    weight_dtype: torch.dtype = torch.float32
    format: Format = Plain()

    @property
    def num_bytes(self) -> int:
        """Of one row."""
        return self._starts[-1]

    @property
    def _contents(self) -> tuple[tuple[torch.dtype, int], ...]:
        """Dtype and length of each part of a row."""
        stored = self.format.storage((1, self.hidden_size), self.dtype).values()
        hidden = [(tensor.dtype, tensor.shape[-1]) for tensor in stored]
        return (*hidden, (torch.int32, self.top_k), (self.weight_dtype, self.top_k))

    @property
    def _starts(self) -> tuple[int, ...]:
        """Where each part and the next row begin."""
        sizes = (-(-dtype.itemsize * length // ALIGNMENT) * ALIGNMENT for dtype, length in self._contents)
        return tuple(accumulate(sizes, initial=0))

    def parts(self, hidden_states: Float[Tensor, "R H"]) -> tuple[Tensor, ...]:
        """The tensors of R rows as which hidden states travel: themselves, or their codes and scales."""
        return codes_and_scales(hidden_states, self.format) if isinstance(self.format, FP8) else (hidden_states,)

    def pack(
        self, parts: Sequence[Tensor], ids: Int[Tensor, "R K"], weights: Float[Tensor, "R K"]
    ) -> UInt8[Tensor, "R num_bytes"]:
        """What `parts` gave, with ids and weights, as bytes; those between two parts are zero."""
        packed = torch.zeros(len(ids), self.num_bytes, dtype=torch.uint8, device=ids.device)
        for start, part in zip(self._starts, (*parts, ids.int(), weights), strict=False):
            if part.numel():
                part_bytes = part.contiguous().view(torch.uint8)
                packed[:, start : start + part_bytes.shape[1]] = part_bytes
        return packed

    def unpack(self, packed: UInt8[Tensor, "R num_bytes"]) -> StandardBatch:
        """The rows again, as views of `packed` whose stride is that of the bytes; hidden states from codes are new."""
        places = zip(self._starts, self._contents, strict=False)
        *hidden, ids, weights = (_part(packed, start, length, dtype) for start, (dtype, length) in places)
        if self.format == Plain():
            return StandardBatch(hidden[0], Routing(ids, weights))
        data, *scales = hidden
        stored = Quantized(self.format, data, dict(zip(self.format.scale_names, scales, strict=True)))
        return StandardBatch(stored.dequantize(self.dtype), Routing(ids, weights))


def _part(packed: Tensor, start: int, length: int, dtype: torch.dtype) -> Tensor:
    """`[R, length]` of `dtype`, beginning at byte `start` of each row."""
    values = packed.view(dtype)
    return values[:, start // dtype.itemsize :][:, :length]
