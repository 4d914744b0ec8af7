"""How rows are rounded to a format before a product: its codes, and which values share a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

EVERYTHING = -1
"""`RoundedForm.columns` of a scale that all rows share."""


@final
@dataclass(frozen=True)
class RoundedForm:
    """`code`: "e4m3", "int8" or "e2m1". `columns`: neighbours with one scale, a power of two; 0 a row; EVERYTHING.

    `scale`: "float32", "bfloat16" or "float16" (the largest over the largest code), "above" or "within" (powers of two,
    as `quant/scales.py` has them), "e4m3" (NVFP4, beside a scale that all rows share).
    """

    code: str
    columns: int
    scale: str

    @property
    def everything(self) -> bool:
        """Whether all rows share one scale."""
        return self.columns == EVERYTHING

    @property
    def shared(self) -> bool:
        """Whether every row's scale depends on all rows."""
        return self.everything or self.scale == "e4m3"

    @property
    def coded(self) -> bool:
        """Whether `code_rows` gives codes that products take as they are: one scale for 128 columns, or for all."""
        # The scale of a row of int8 codes says where there was a NaN, so it has to be the row's own.
        return (self.code == "e4m3" and self.columns in (0, 128, EVERYTHING)) or (
            self.code == "int8" and self.columns in (0, 128)
        )
