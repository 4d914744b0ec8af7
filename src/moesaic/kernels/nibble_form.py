"""What a grouped product of 4-bit weights on Hopper is compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from typing_extensions import override

from moesaic.kernels.hopper_form import DEPTH, SPARE, Pipeline, ProductForm

FEW = Pipeline(stages=4, staged=SPARE, skew=2)
"""For tiles of 32 rows: 24 KB a block, so that two programs share a multiprocessor."""


@final
@dataclass(frozen=True, kw_only=True)
class NibbleForm(ProductForm):
    """Of weights of 4 bits. A step is a block of `shuffled_nibbles.py`, of which the low bits hold the first half.

    Tiles have no spare rows: their sums would need the registers that hold weights.

    `code`: "int4" or "e2m1". `group`: columns that share a scale, 16 to 128. `scale`: "bfloat16", "e8m0" or "e4m3".
    `planes`: words of scales in a step. `whole`: there is a scale of each matrix beside. `small`: no scale is above 2.

    With `rows` of SPARE two programs share a multiprocessor: of few rows nearly all time goes into making numbers of
    codes, and 16 warps fill the gaps that 8 leave (16 % of INT4's layer at 64 tokens, docs/performance/quantized.md).
    """

    depth: ClassVar[int] = 2 * DEPTH
    weight_depth: ClassVar[int] = DEPTH
    halves: ClassVar[int] = 2
    boxed: ClassVar[bool] = True

    code: str
    group: int
    scale: str
    planes: int
    whole: bool
    small: bool

    @property
    def few(self) -> bool:
        """Whether two programs share a multiprocessor."""
        return self.rows == SPARE

    @property
    @override
    def programs(self) -> int:
        return 2 if self.few else 1

    @property
    @override
    def launched_registers(self) -> int:
        return 80 if self.few else 0

    @property
    @override
    def consumer_registers(self) -> int:
        return 104 if self.few else 240

    @property
    def bare(self) -> bool:
        """Whether numbers in E2M1 come times 2^-126, as their bits stand, which their scales make up for."""
        return self.code == "e2m1" and (self.scale == "e4m3" or self.small)

    @property
    def lift(self) -> float:
        """What scales in E4M3 are multiplied by, at most 448 * 2^118."""
        return 2.0**118 if self.bare else 1.0

    @property
    def lacking(self) -> float:
        """What sums lack then: 2^126 of both."""
        return 2.0**8 if self.bare and self.scale == "e4m3" else 1.0

    @property
    def scale_bytes(self) -> int:
        """Of one scale."""
        return 2 if self.scale == "bfloat16" else 1
