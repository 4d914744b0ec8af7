"""What a kernel is compiled for to read a format: its codes, and which of them share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

BLOCK = 128
"""Columns that a program reads at once: of packed codes the first 64 in the low bits, the last 64 in the high bits."""

HALF = BLOCK // 2


@final
@dataclass(frozen=True)
class StoredForm:
    """How weights are stored.

    `code`: "e4m3", "int8", "int4" or "e2m1", the last two of them two in a byte (`shuffled_nibbles.py`).
    `tile_rows`, `tile_columns`: what shares a scale; 0 for all there are. `scale`: "float", "e8m0" or "e4m3".
    `zero_point`: one beside each scale. `global_scale`: one for a matrix, on top.
    `small`: no scale in E8M0 is above 2, as far as weights were looked at. `planes`: words that hold the scales of a
    row in a block, if scales lie by boxes (`boxed_scales.py`); 0 if they lie in rows.
    """

    code: str
    tile_rows: int
    tile_columns: int
    scale: str
    zero_point: bool = False
    global_scale: bool = False
    small: bool = False
    planes: int = 0

    @property
    def block(self) -> int:
        """BLOCK, for a kernel: in the interpreter a constant of a module is no number."""
        return BLOCK

    @property
    def half(self) -> int:
        """HALF."""
        return HALF

    @property
    def width(self) -> int:
        """Columns of a block that a tile of numbers holds, and bytes of its codes."""
        return HALF if self.packed else BLOCK

    @property
    def packed(self) -> bool:
        """Whether a byte holds two codes."""
        return self.code in ("int4", "e2m1")

    @property
    def inside(self) -> bool:
        """Whether codes are scaled before they are multiplied: where a block holds several scales of a row.

        With a zero point they always are: subtracted before products that are scaled later, in triton 3.6 on sm_90,
        zero points of groups of 128 gave wrong sums with two tilings, though their intermediate code is right.
        """
        return 0 < self.tile_columns < BLOCK or self.zero_point

    @property
    def bare(self) -> bool:
        """Whether scales can be multiplied by 2^126, as the bits of E2M1 in a bfloat16 number lack."""
        return self.code == "e2m1" and self.scale == "e8m0" and self.small and self.planes > 0

    @property
    def groups(self) -> int:
        """Scales of a row in a tile of numbers."""
        return max(1, self.width // self.tile_columns) if self.tile_columns else 1

    def one_scale(self, columns: int) -> bool:
        """Whether all `columns` of a row share a scale, which then waits for the end of the sum."""
        return not self.inside and (self.tile_columns == 0 or self.tile_columns >= columns)
