"""What a grouped product on Hopper is compiled for, and the sizes that its three roles share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from triton.experimental.gluon import language as gl

ROWS = 128
"""Rows of a tile; an expert's last tile takes up to `SPARE` more, instead of a pass over its weights for a few rows."""

SPARE = 32
"""Also what every expert's rows begin at multiples of, so that no store needs a mask."""

BOX = 64
"""Rows of weights copied at once; a tile holds four boxes, two for each consumer."""

DEPTH = 64
"""Elements of the inner dimension in a block: 128 bytes, the widest swizzle."""

QUEUE = 2
"""Tiles that the producer may run ahead of the consumers."""

TILE_ROWS, SPARE_ROWS, WEIGHT_ROWS = gl.constexpr(ROWS), gl.constexpr(SPARE), gl.constexpr(BOX)
BLOCK_DEPTH, QUEUED = gl.constexpr(DEPTH), gl.constexpr(QUEUE)
PIECES = gl.constexpr(ROWS // SPARE)
"""Pieces of 32 rows in a tile without its spare ones."""


@final
@dataclass(frozen=True)
class Pipeline:
    """`stages` blocks of 52 KB in flight; `staged` rows of output that a consumer stages at a time; `skew` steps that
    the second consumer is late.
    """

    stages: int
    staged: int
    skew: int


PIPELINE = Pipeline(stages=4, staged=64, skew=2)
"""Fills the 227 KB of a multiprocessor. Three stages with all 128 rows staged cost 3 to 10 % of a product, another skew
nothing that can be told from noise (docs/performance/hopper.md)."""


@final
@dataclass(frozen=True)
class Form:
    """Compile-time constants of one product; the kernel reads its fields.

    `gather`: slots of a token, if rows are gathered, else 0. `bias`, `gated`: of this projection. `announce`: flags
    count what is stored of each tile. `after`: what a tile's flag must say before its rows are read, 0 for no flag.
    """

    pipeline: Pipeline
    gather: int
    bias: bool
    gated: bool
    announce: bool
    after: int
