"""What a grouped product on Hopper is compiled for, and the sizes that its three roles share."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, final

from triton.experimental.gluon import language as gl

ROWS = 128
"""Rows of a tile; an expert's last tile takes up to `SPARE` more, instead of a pass over its weights for a few rows."""

SPARE = 32
"""Also what every expert's rows begin at multiples of, so that no store needs a mask."""

BOX = 64
"""Rows of weights copied at once; a tile holds four boxes, two for each consumer."""

DEPTH = 64
"""Elements of the inner dimension in a block: 128 bytes, the widest swizzle. Twice as many of 8 bits."""

QUEUE = 2
"""Tiles that the producer may run ahead of the consumers."""

TILE_ROWS, SPARE_ROWS, WEIGHT_ROWS = gl.constexpr(ROWS), gl.constexpr(SPARE), gl.constexpr(BOX)
BLOCK_DEPTH, QUEUED = gl.constexpr(DEPTH), gl.constexpr(QUEUE)
PIECES = gl.constexpr(ROWS // SPARE)
"""Pieces of 32 rows in a tile without its spare ones."""


@final
@dataclass(frozen=True)
class Pipeline:
    """`stages` blocks of 48 KB in flight, 52 KB with spare rows; `staged` rows of output that a consumer stages at a
    time; `skew` steps that the second consumer is late.
    """

    stages: int
    staged: int
    skew: int


PIPELINE = Pipeline(stages=4, staged=64, skew=2)
"""Fills the 227 KB of a multiprocessor. Three stages with all 128 rows staged cost 3 to 10 % of a product, another skew
nothing that can be told from noise (docs/performance/hopper.md)."""


@dataclass(frozen=True, kw_only=True)
class ProductForm(ABC):
    """Compile-time constants of one product; the kernel and its roles read its fields.

    `bias`, `gated`: of this projection. `announce`: flags count what is stored of each tile. `after`: what a tile's
    flag must say before its rows are read, 0 for no flag. `gather`: slots of a token, if rows are gathered, else 0.
    `row_groups`: each block of columns of a row has a scale. `rows`: the most in a tile, SPARE or ROWS.
    `slots`: of a token, if its rows are summed (`slot_sums.py`), else 0; `weighted`: times router weights.
    `column_blocks`: of the output, one after another for all rows.
    """

    depth: ClassVar[int]
    """Columns of rows in a step."""
    weight_depth: ClassVar[int]
    """Elements of a row of weights in a step, bytes of packed ones."""
    halves: ClassVar[int] = 1
    """Blocks of rows in a step."""
    woven: ClassVar[bool] = False
    """Whether these are one block, in which pieces of them take turns."""
    boxed: ClassVar[bool] = False
    """Whether scales of weights are copied too, by boxes."""
    spares: ClassVar[bool] = False
    """Whether a tile may have spare rows."""
    shared: ClassVar[bool] = False
    """Whether both consumers multiply all of a tile's weights, each with half of its rows, and not the reverse."""

    pipeline: Pipeline = PIPELINE
    bias: bool
    gated: bool
    announce: bool
    after: int
    gather: int = 0
    row_groups: bool = False
    rows: int = ROWS
    slots: int = 0
    weighted: bool = False
    column_blocks: int = 1

    @property
    def slots_at_once(self) -> int:
        """Slots whose rows are summed at once: a power of two."""
        return min(8, 1 << (self.slots - 1).bit_length()) if self.slots else 1

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a warp whose rows are summed at once: eight loads of 16 bytes are in flight."""
        return 8 // self.slots_at_once

    @property
    def piece(self) -> int:
        """Rows that are copied at once."""
        return SPARE

    @property
    def pieces(self) -> int:
        """Of them in a tile without its spare ones."""
        return self.rows // self.piece

    @property
    def row_depth(self) -> int:
        """Elements of a row in a step."""
        return self.depth

    @property
    def programs(self) -> int:
        """On a multiprocessor."""
        return 1

    @property
    def launched_registers(self) -> int:
        """Of every thread before the roles divide them; 0 for as many as there are."""
        return 0

    @property
    def producer_warps(self) -> int:
        """One issues copies by TMA."""
        return 1

    @property
    def consumer_registers(self) -> int:
        """Of a thread of the second consumer; those of the first have what is left."""
        return 240

    @property
    def producer_registers(self) -> int:
        """Of a thread of the producer."""
        return 32
