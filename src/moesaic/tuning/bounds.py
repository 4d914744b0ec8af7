"""Bounds of the numbers in a choice: outside of them no kernel can be compiled, or none could ever be worth it.

What lies inside and still asks for more than a device has fails when it is launched (LaunchError).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from moesaic.checks import whole_number
from moesaic.errors import TuningError


@final
@dataclass(frozen=True)
class Bounds:
    """From `least` to `most`, a power of two where it is the size of a tile; 0 where there may be none."""

    least: int
    most: int
    power_of_two: bool = True
    or_none: bool = False

    def checked(self, owner: str, name: str, value: object) -> int:
        """`value` as a plain int; raises TuningError if it is none or lies outside."""
        number = whole_number(owner, name, value, TuningError, at_least=0 if self.or_none else self.least)
        if self.or_none and number == 0:
            return 0
        if number < self.least:
            raise TuningError(f"{owner}.{name} is {number}, but it needs 0 or at least {self.least}")
        if number > self.most:
            raise TuningError(f"{owner}.{name} is {number}, but it needs at most {self.most}")
        if self.power_of_two and number & (number - 1):
            raise TuningError(f"{owner}.{name} is {number}, but it needs a power of two, as a kernel's sizes are")
        return number


SIDE = Bounds(1, 2**20)
"""Columns, or rows of weights: a tile has at most 2^20 elements in Triton (TRITON_MAX_TENSOR_NUMEL)."""

TENSOR_CORE_SIDE = Bounds(16, 2**20)
"""Rows of a tile, and elements of the inner dimension: the least that the tensor cores' instructions take."""

TENSOR_CORE_SIDE_OR_NONE = Bounds(16, 2**20, or_none=True)
"""The same for a tile that may be left out."""

STAGES = Bounds(1, 12, power_of_two=False)
"""In flight at a time: no shared memory holds more of the sizes that pay."""

WARPS = Bounds(1, 32)
"""Of a block: 1024 threads on any GPU."""

GROUP = Bounds(1, 1024, power_of_two=False)
"""Tiles side by side: of 128 rows each, more than share anything in an L2."""

BLOCKS = Bounds(2, 8, or_none=True)
"""Of columns: what is stored of each is counted in a slot of its own (`kernels/row_order.py`)."""


def checked_sizes(owner: str, name: str, value: object, bounds: tuple[Bounds, ...]) -> tuple[int, ...]:
    """`value` as a tuple of plain ints, each within its bounds; raises TuningError otherwise."""
    if not isinstance(value, tuple) or len(value) != len(bounds):
        needed = f"{len(bounds)} whole numbers, for instance {(16, 128, 3, 4)[: len(bounds)]}"
        raise TuningError(f"{owner}.{name} is {value!r}, but it needs {needed}")
    return tuple(bound.checked(owner, f"{name}[{at}]", value[at]) for at, bound in enumerate(bounds))
