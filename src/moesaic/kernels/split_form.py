"""What a grouped product of 4-bit weights with split rows on Hopper is compiled for.

A number in bfloat16 has 8 significant bits, one in E4M3 has 4: it is the sum of two of them, high and low, times a
power of two that 64 columns share. What is below 2^-9 of the largest of them keeps fewer bits, to 2^-17 of it.
So products of FP8 do what products of bfloat16 would. A code of 4 bits becomes one of E4M3 in a quarter of the
instructions, four codes at a time, and scales are multiplied with sums (docs/performance/quantized.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from triton.experimental.gluon import language as gl
from typing_extensions import override

from moesaic.kernels.hopper_form import DEPTH, Pipeline, ProductForm
from moesaic.kernels.split_rows import BLOCK

PIECE = 8
"""Rows copied at once: the least that the tensor core multiplies."""

ROWS = 2 * PIECE
"""Of a tile: sums of more, in as many parts as there are scales, take too many registers."""

SHARED = 64
"""Columns of a row that share a power of two."""

PIECE_ROWS, SHARED_COLUMNS, BLOCK_COLUMNS = gl.constexpr(PIECE), gl.constexpr(SHARED), gl.constexpr(BLOCK)


@final
@dataclass(frozen=True, kw_only=True)
class SplitForm(ProductForm):
    """Of weights of 4 bits in `shuffled_nibbles.py`'s blocks and rows split in two, in tiles of 16 rows.

    `code`: "int4", or "e2m1". `group`: columns that share a scale, 32 of E2M1, 64 or 128 of INT4. `scale`:
    "bfloat16" or "e8m0". `small`: no scale is above 2. `splits`: what comes out is split too.
    `whole`: it has no short block.
    """

    depth: ClassVar[int] = BLOCK
    weight_depth: ClassVar[int] = DEPTH
    halves: ClassVar[int] = 2
    woven: ClassVar[bool] = True
    boxed: ClassVar[bool] = True
    planes: ClassVar[int] = 1

    pipeline: Pipeline = Pipeline(stages=4, staged=2 * PIECE, skew=2)
    rows: int = ROWS
    row_groups: bool = True
    code: str
    group: int
    scale: str
    small: bool
    splits: bool
    whole: bool

    @property
    @override
    def piece(self) -> int:
        return PIECE

    @property
    @override
    def row_depth(self) -> int:
        return 2 * BLOCK

    @property
    @override
    def programs(self) -> int:
        return 2

    @property
    @override
    def launched_registers(self) -> int:
        return 80

    @property
    @override
    def consumer_registers(self) -> int:
        return 96

    @property
    @override
    def producer_registers(self) -> int:
        return 40

    @property
    def lacking(self) -> float:
        """What sums lack: codes as E4M3 are so many times smaller than what they stand for."""
        return 2.0**6 if self.code == "e2m1" else 2.0**9

    @property
    def beside(self) -> int:
        """Numbers beside a block of a row."""
        return numbers_beside(self.code)


def numbers_beside(code: str) -> int:
    """What lies beside a block of a row: two powers of two, and the sums of what they scale if codes have an offset."""
    return 2 if code == "e2m1" else 4
