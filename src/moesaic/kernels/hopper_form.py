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

    @property
    def stages(self) -> int:
        """Blocks in flight."""
        return self.pipeline.stages

    @property
    def skew(self) -> int:
        """Steps that the second consumer is late."""
        return self.pipeline.skew

    @property
    def depth(self) -> int:
        """Elements of the inner dimension in a block."""
        return DEPTH

    @property
    def weight_depth(self) -> int:
        """Elements of weights in a block."""
        return DEPTH

    @property
    def halves(self) -> int:
        """Blocks of rows in a step."""
        return 1

    @property
    def spares(self) -> bool:
        """Whether a tile may have spare rows."""
        return True

    @property
    def shared(self) -> bool:
        """Whether both consumers multiply all of a tile's weights."""
        return False

    @property
    def row_groups(self) -> bool:
        """Whether rows have a scale for each block of columns."""
        return False


@final
@dataclass(frozen=True)
class CodedForm:
    """The same of a product of FP8 codes, whose rows are never gathered.

    `row_groups`: 128 columns of a row share a scale, else the row does. `weight_blocks`: 128 rows and 128 columns of
    weights do, else with `weight_rows` a row, else a matrix. `powers`: scales of weights are E8M0. `recode`: what comes
    out is codes, with scales rounded as `RoundedForm.scale` says; "" for numbers. `whole`: no group of them is short.
    """

    stages: int
    skew: int
    bias: bool
    gated: bool
    announce: bool
    after: int
    row_groups: bool
    weight_blocks: bool
    weight_rows: bool
    powers: bool
    recode: str
    whole: bool

    @property
    def gather(self) -> int:
        """No."""
        return 0

    @property
    def depth(self) -> int:
        """128 bytes."""
        return 2 * DEPTH

    @property
    def weight_depth(self) -> int:
        """128 bytes."""
        return 2 * DEPTH

    @property
    def halves(self) -> int:
        """One block of rows in a step."""
        return 1

    @property
    def spares(self) -> bool:
        """None."""
        return False

    @property
    def shared(self) -> bool:
        """Yes: a consumer has half of the rows."""
        return True

    @property
    def recodes(self) -> bool:
        """Whether what comes out is codes."""
        return self.recode != ""
