"""What `moesaic tune` tries for a number of rows: the cost model's choice and what came near the best on an H200.

The space is pruned by what was seen there (`benchmarks/results/hopper_experiments_h200.json`): deeper blocks and
narrower ones lose everywhere, a tile that an expert fills three times over reads its weights three times, products lose
below 32 mean rows, rows are copied only where more than ten tiles of columns would gather them.
"""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.tuning.choices import Choice, Product, Streamed, Vector
from moesaic.tuning.choosing import CostModel, Task
from moesaic.tuning.cost_model import pairs_of
from moesaic.tuning.products import LEAST_MEAN_ROWS, can_gather, is_read_often, may_copy
from moesaic.tuning.strips import MOST_PAIRS, strips
from moesaic.tuning.tilings import HOPPER, tilings

UP_STRIPS = ((2, 2048, 1, 4), (2, 1024, 1, 2), (8, 256, 4, 2), (16, 256, 3, 4), (16, 256, 4, 4))
DOWN_STRIPS = (
    *((8, 1024, 3, 4), (4, 1024, 4, 4), (4, 2048, 3, 8), (4, 512, 5, 2), (8, 256, 6, 2)),
    *((16, 256, 4, 4), (16, 256, 6, 4)),
)

HOPPER_ONLY: tuple[Streamed, ...] = (
    Streamed(16, 0, (32, 128, 3), (64, 128, 3), warps=4, swap=False, tma=False),
    Streamed(32, 0, (32, 128, 3), (64, 128, 3), warps=4, swap=True, tma=False),
    Streamed(32, 16, (64, 64, 4), (128, 64, 4), warps=4, swap=True, tma=True),
    Streamed(64, 0, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True),
    Streamed(64, 0, (64, 64, 4), (128, 64, 4), warps=4, swap=True, tma=True),
    Streamed(64, 32, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True),
)
OTHERS_ONLY: tuple[Streamed, ...] = (
    Streamed(16, 0, (8, 128, 3), (16, 128, 3), warps=1, swap=False, tma=False),
    Streamed(16, 0, (32, 128, 3), (64, 128, 3), warps=4, swap=False, tma=False),
    Streamed(32, 0, (64, 64, 3), (128, 64, 3), warps=4, swap=False, tma=False),
    Streamed(64, 0, (64, 64, 4), (128, 64, 3), warps=8, swap=False, tma=False),
)
"""Beside those of the cost model; on GPUs other than Hopper none was measured."""

LEAST_SUMMED = 512
"""Mean rows of an expert below which sums between blocks of columns cost 3 to 10 %."""

GROUPS = (4, 8, 16)
"""Tiles side by side, where an expert has several."""


def candidates(task: Task, num_rows: int) -> tuple[Choice, ...]:
    """The cost model's choice first, then every other that is worth a try, each once."""
    default = CostModel().chooser(task)(num_rows)
    offered = [*_vectors(task, num_rows), *_streamed(task, num_rows), *_products(task, num_rows)]
    kept = [choice for choice in offered if choice.__class__ in task.forms]
    return tuple(dict.fromkeys((default, *kept)))


def may_serve(choice: Choice, task: Task, num_rows: int) -> bool:
    """Whether a table may say `choice` for `num_rows` rows: the backend has it, and states memory for it."""
    if choice.__class__ not in task.forms or not choice.computes(task.problem):
        return False
    match choice:
        case Streamed(swap=swap, tma=tma):
            return task.machine.capability >= HOPPER or not (swap or tma)
        case Product(gather=gather):
            enough = pairs_of(task.problem, num_rows) >= LEAST_MEAN_ROWS * task.problem.num_experts
            return enough and (gather or may_copy(task.problem))
        case _:
            return True


def _vectors(task: Task, num_rows: int) -> Iterator[Vector]:
    problem = task.problem
    if not problem.layout.has_routing or pairs_of(problem, num_rows) > 2 * MOST_PAIRS:
        return
    usual = strips(problem, num_rows)
    yield usual
    for up in UP_STRIPS:
        if up[1] < 2 * problem.hidden_size:
            yield Vector(up, usual.down)
    for down in DOWN_STRIPS:
        if down[1] < 2 * problem.intermediate_size:
            yield Vector(usual.up, down)


def _streamed(task: Task, num_rows: int) -> Iterator[Streamed]:
    mean = pairs_of(task.problem, num_rows) / task.problem.num_experts
    more = HOPPER_ONLY if task.machine.capability == HOPPER else OTHERS_ONLY
    for tiling in (*(tiling for _, tiling in tilings(task.machine)), *more):
        if mean <= 3 * tiling.tile_rows and (tiling.tile_rows <= 32 or tiling.tile_rows <= 8 * mean):
            yield tiling


def _products(task: Task, num_rows: int) -> Iterator[Product]:
    problem = task.problem
    mean = pairs_of(problem, num_rows) / problem.num_experts
    if mean < LEAST_MEAN_ROWS:
        return
    gathers = [True] if can_gather(problem) else []
    copies = [False] if not gathers or (is_read_often(problem) and mean >= 4 * LEAST_MEAN_ROWS) else []
    for gather in (*gathers, *copies):
        for group in GROUPS if mean > 256 else (8,):
            yield Product(gather, group)
        if mean >= LEAST_SUMMED and problem.layout.has_routing:
            yield from (Product(gather, blocks=blocks) for blocks in (4, 8))
