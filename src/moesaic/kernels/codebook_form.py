"""What a compiled CPU kernel has to know of a format of 4 bits: its sixteen numbers, and how its scales are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

ScaleKind: TypeAlias = Literal["float32", "bfloat16", "float16", "e8m0", "e4m3"]

INTEGERS: tuple[float, ...] = tuple(float(code - 8) for code in range(16))
"""INT4 without a zero point; with one, each group moves them."""

E2M1: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""MXFP4 and NVFP4. Source: OCP Microscaling Formats v1.0, section 5.3.3."""


@final
@dataclass(frozen=True)
class CodebookForm:
    """`numbers[code] * scale`, every number exact in bfloat16."""

    numbers: tuple[float, ...]
    scale: ScaleKind
    zero_point: bool = False
    """Whether each group has one, uint8: what is read back is `(numbers[code] + 8 - zero_point) * scale`."""
    factor: bool = False
    """Whether each column has a float32 factor beside its scales."""


FORMS: tuple[CodebookForm, ...] = (
    *(CodebookForm(INTEGERS, scale) for scale in ("float32", "bfloat16", "float16")),
    *(CodebookForm(INTEGERS, scale, zero_point=True) for scale in ("float32", "bfloat16", "float16")),
    CodebookForm(E2M1, "e8m0"),
    CodebookForm(E2M1, "e4m3", factor=True),
)
"""Every form that there is a kernel for."""
