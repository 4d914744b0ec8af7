"""What a grouped product of 4-bit weights on Hopper is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from moesaic.kernels.hopper_form import DEPTH, Pipeline


@final
@dataclass(frozen=True)
class NibbleForm:
    """Compile-time constants; the kernel and the producer read its fields.

    `bias`, `gated`: of this projection. `announce`, `after`: as of `hopper_form.Form`. `code`: "int4" or "e2m1".
    `group`: columns that share a scale, 16 to 128. `scale`: "bfloat16", "e8m0" or "e4m3". `word`: bytes of scales
    read at once. `whole`: there is a scale of each matrix beside.
    """

    stages: int
    skew: int
    bias: bool
    gated: bool
    announce: bool
    after: int
    code: str
    group: int
    scale: str
    word: int
    whole: bool

    @property
    def pipeline(self) -> Pipeline:
        """What `finish` stages at a time."""
        return Pipeline(self.stages, 64, self.skew)

    @property
    def scale_bytes(self) -> int:
        """Of one scale."""
        return 2 if self.scale == "bfloat16" else 1

    @property
    def gather(self) -> int:
        """Rows are copied in expert order before."""
        return 0

    @property
    def depth(self) -> int:
        """Columns of a step: a block of `shuffled_nibbles.py`, of which the low bits hold the first half."""
        return 2 * DEPTH

    @property
    def weight_depth(self) -> int:
        """Their bytes."""
        return DEPTH

    @property
    def halves(self) -> int:
        """Blocks of 64 columns of rows in a step."""
        return 2

    @property
    def spares(self) -> bool:
        """A tile has no spare rows: their sums would need the registers that hold weights."""
        return False

    @property
    def row_groups(self) -> bool:
        """Rows are numbers."""
        return False

    @property
    def shared(self) -> bool:
        """Each consumer has weights of its own."""
        return False
