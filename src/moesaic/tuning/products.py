"""When two grouped products over all rows are faster than streaming the weights, and how they get at their rows."""

from __future__ import annotations

from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning.bandwidth import H200, bandwidth_of_one
from moesaic.tuning.choices import Product

ROWS, COLUMNS, DEPTH = 128, 256, 64
"""Of a tile: rows, columns of weights, and elements of the inner dimension in a block (`kernels/hopper_form.py`)."""

MEAN_ROWS = 64
"""Mean rows of an expert from which products are faster on an H200: so much work waits for each byte of weights.

Where memory is slower, as on an H100, weights are on their way for longer, and streaming them is no worse so far.
"""

LEAST_MEAN_ROWS = 32
"""Mean rows below which products are never chosen and not tried: each expert's rows are padded to 32."""

MANY_ROWS, GATHERED_TIMES = 512, 10
"""Mean rows of an expert, and tiles of columns each of which gathers a row again, up to either of which gathering costs
no more than copying rows once. Copied rows make a first product 5 % faster at 1024 rows, 0 to 2 % at 256, for a copy of
5 % (H200; qwen3-30b has 6 tiles of columns, dsv3 16, gpt-oss-120b 23, mixtral 112)."""

SUMMED_ROWS, BLOCKS = 4096, 8
"""Mean rows of an expert from which results are summed between blocks of columns of the second product, and how many.

The memory is idle there, and 16384 tokens of mixtral and dsv3 take 2 to 3 % less. Each block reads the inner rows once
more: at 1024 and 2048 rows it costs as much as it gains, at 256 rows 5 to 10 % (H200, docs/performance/hopper.md)."""

SUMMED_SLOTS = 8
"""Slots of a token up to which that was run on a GPU: they are summed eight at a time."""


def mean_rows(machine: Machine) -> float:
    """Mean rows of an expert from which products are chosen on `machine`."""
    return max(LEAST_MEAN_ROWS, MEAN_ROWS * H200 / bandwidth_of_one(machine))


def can_gather(problem: Problem) -> bool:
    """A row that is scaled, or that ends inside a block, has to be copied; rows in expert order lie where they are."""
    return problem.layout.has_routing and not problem.weight_on_input and problem.hidden_size % DEPTH == 0


def is_read_often(problem: Problem) -> bool:
    """Whether a gathered row is read by more tiles of columns than a copy of it costs."""
    return problem.width > GATHERED_TIMES * COLUMNS


def product(problem: Problem, num_pairs: int) -> Product:
    """The products of so many rows."""
    many = num_pairs >= MANY_ROWS * problem.num_experts
    gather = can_gather(problem) and not (many and is_read_often(problem))
    enough = num_pairs >= SUMMED_ROWS * problem.num_experts and problem.top_k <= SUMMED_SLOTS
    return Product(gather=gather, blocks=BLOCKS if enough and problem.layout.has_routing else 0)


def may_copy(problem: Problem) -> bool:
    """Whether rows are copied for some number of rows."""
    return is_read_often(problem) or not can_gather(problem)
