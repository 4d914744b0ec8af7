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

FLOPS, BANDWIDTH = 640e12, 4.2e12
"""A second, of products in bfloat16 and of the memory (H200)."""

IDLE = 1.4
"""Computing over moving of the second product from which sums between its columns pay. At 2.1 (dsv3, 4096 tokens) they
gain 3 %, at 1.2 (qwen3-30b, 16384) nothing, at 0.7 (gpt-oss-120b, 4096) they cost 6 %."""


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
    return Product(gather=gather, blocks=column_blocks(problem, num_pairs, FLOPS, problem.dtype.itemsize))


def column_blocks(problem: Problem, num_pairs: int, flops: float, weight_bytes: float) -> int:
    """Blocks of columns between which results are summed over the slots, 0 for a sum behind the products.

    Each block reads the inner rows once more, so it pays where the second product leaves the memory idle: with
    `flops` a second, against weights of `weight_bytes` an element, once, inner rows for each block, and results written
    and read again.
    """
    if not problem.layout.has_routing:
        return 0
    hidden, inner, size = problem.hidden_size, problem.intermediate_size, problem.dtype.itemsize
    computing = 2 * num_pairs * hidden * inner / flops
    for blocks in (8, 4):
        moved = problem.num_experts * hidden * inner * weight_bytes + num_pairs * size * (blocks * inner + 2 * hidden)
        if computing >= IDLE * moved / BANDWIDTH:
            return blocks
    return 0


def may_copy(problem: Problem) -> bool:
    """Whether rows are copied for some number of rows."""
    return is_read_often(problem) or not can_gather(problem)
