"""Choice: by what form, and cut how, a number of rows is computed. Frozen, without tensors, written as its repr.

Sizes are in elements, within `bounds.py`. Which kernel each form runs is the backends' affair
(`backends/triton_tilings.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import final

from typing_extensions import override

from moesaic.checks import flag
from moesaic.errors import ParseError, TuningError
from moesaic.parsing import parse
from moesaic.problem import Problem
from moesaic.tuning.bounds import (
    BLOCKS,
    GROUP,
    SIDE,
    STAGES,
    TENSOR_CORE_SIDE,
    TENSOR_CORE_SIDE_OR_NONE,
    WARPS,
    checked_sizes,
)


@dataclass(frozen=True)
class Choice(ABC):
    """One way to compute the rows of a layer. Any of them gives the right rows; they differ in speed and memory."""

    @abstractmethod
    def computes(self, problem: Problem) -> bool:
        """Whether rows in the layout of `problem` can be computed so."""


@final
@dataclass(frozen=True)
class Vector(Choice):
    """Each (token, slot) pair by itself as products of a matrix and a vector: no order of rows, no sharing of weights.

    `up`, `down`: of a program of each product: output columns, elements of the inner dimension at a time, loads in
    flight, warps.
    """

    up: tuple[int, int, int, int]
    down: tuple[int, int, int, int]

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            sizes = checked_sizes("Vector", name, getattr(self, name), (SIDE, TENSOR_CORE_SIDE, STAGES, WARPS))
            object.__setattr__(self, name, sizes)

    @override
    def computes(self, problem: Problem) -> bool:
        return problem.layout.has_routing


@final
@dataclass(frozen=True)
class Streamed(Choice):
    """Tiles of rows of one expert meet its weights, which are read once for each tile.

    `rows`, `more`: a tile holds `rows` rows, and `more` beyond them that are computed only where an expert has so many.
    `up`, `down`: of each product's blocks of weights: rows, elements of the inner dimension, how many are in flight.
    `swap`: the weights' rows are the M of the tensor core's instruction. `tma`: weights are copied by TMA.
    """

    rows: int
    more: int
    up: tuple[int, int, int]
    down: tuple[int, int, int]
    warps: int
    swap: bool
    tma: bool

    def __post_init__(self) -> None:
        for name, bounds in (("rows", TENSOR_CORE_SIDE), ("more", TENSOR_CORE_SIDE_OR_NONE), ("warps", WARPS)):
            object.__setattr__(self, name, bounds.checked("Streamed", name, getattr(self, name)))
        for name in ("up", "down"):
            sizes = checked_sizes("Streamed", name, getattr(self, name), (SIDE, TENSOR_CORE_SIDE, STAGES))
            object.__setattr__(self, name, sizes)
        for name in ("swap", "tma"):
            flag("Streamed", name, getattr(self, name), TuningError)

    @property
    def tile_rows(self) -> int:
        """Rows that one tile takes."""
        return self.rows + self.more

    @override
    def computes(self, problem: Problem) -> bool:
        return True


@final
@dataclass(frozen=True)
class Product(Choice):
    """Two grouped products over all rows, on Hopper.

    `gather`: rows are gathered where they are used instead of copied in expert order before; a row that is scaled, or
    that ends inside a block, is copied all the same. `group`: tiles of an expert computed side by side, so that they
    share its weights in L2. `blocks`: of columns of the second product, each of which is summed over the slots while
    the next is computed; 0 for sums behind it.
    """

    gather: bool = True
    group: int = 8
    blocks: int = 0

    def __post_init__(self) -> None:
        flag("Product", "gather", self.gather, TuningError)
        object.__setattr__(self, "group", GROUP.checked("Product", "group", self.group))
        object.__setattr__(self, "blocks", BLOCKS.checked("Product", "blocks", self.blocks))

    @override
    def computes(self, problem: Problem) -> bool:
        return True


FORMS: tuple[type[Choice], ...] = (Vector, Streamed, Product)
"""Every form there is; a backend lists those that it has."""


def read_choice(text: str) -> Choice:
    """The choice whose repr is `text`; raises ParseError or TuningError saying what is wrong."""
    found = parse(text, {form.__name__: form for form in FORMS})
    if not isinstance(found, Choice):
        raise ParseError(f"{text!r} is no choice: it needs the repr of one of {', '.join(f.__name__ for f in FORMS)}")
    return found


def short(choice: Choice) -> str:
    """For people: `Vector (2, 2048, 1, 4) (8, 1024, 3, 4)`; flags by their names, where they are set."""
    values = {field.name: getattr(choice, field.name) for field in fields(choice)}
    said = [str(v) if not isinstance(v, bool) else name for name, v in values.items() if v is not False]
    return " ".join((choice.__class__.__name__, *said))
