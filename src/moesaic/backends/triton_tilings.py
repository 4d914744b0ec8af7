"""Which tiles for how many rows: the cost model of the streamed kernels, as measured (docs/performance/hopper.md).

Few rows an expert: weights are read once and nothing else counts. One warp a program needs no barrier, thirteen of
them on a multiprocessor keep the memory busy, and the last wave is short. From about 8 rows on wgmma is worth its 64
rows of weights, from 20 on a tile should take an expert whole, since a second pass would read its weights again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.machine import Machine
from moesaic.problem import Problem

if TYPE_CHECKING:
    from moesaic.kernels.streamed_experts import Tiling
    from moesaic.kernels.vector_experts import Strip

HOPPER = 90

VECTOR_PAIRS, VECTOR_BYTES = 24, 512 * 2**20
"""Pairs, and bytes of their experts' weights, up to which each pair reads its expert by itself: few repeat one, and an
order of the pairs costs two launches. Two tokens of qwen3-30b take 40 us instead of 47, of gpt-oss-120b 96 instead of
102; of dsv3, with 1.4 GB, 312 instead of 289."""

LARGE_EXPERT = 64 * 2**20
"""Bytes of an expert's weights from which a tile of 64 rows serves a mean of 32 best (mixtral 3 %, dsv3 0; qwen3-30b,
with 9 MB, loses 3 %)."""


def vector_strips(problem: Problem, num_pairs: int, num_tokens: int) -> tuple[Strip, Strip] | None:
    """How to compute each pair by itself; None where ordering the pairs pays."""
    from moesaic.kernels.vector_experts import Strip  # noqa: PLC0415

    read = num_pairs * problem.num_weights * problem.dtype.itemsize
    if num_tokens > 1 and (num_pairs > VECTOR_PAIRS or read > VECTOR_BYTES):
        return None
    hidden, inner = problem.hidden_size, problem.intermediate_size
    if num_tokens > 1 and hidden % 2048:
        return Strip(2, 1024, 1, 2), Strip(4, 1024, 4, 4)
    if hidden < 2048:
        up = Strip(16, 256, 4, 4)
    else:  # whole rows in one burst; dsv3's 7168 are 3.5 of the longer
        up = Strip(2, 1024, 1, 2) if hidden % 2048 == 1024 else Strip(2, 2048, 1, 4)
    return up, Strip(4, 2048, 3, 8) if inner >= 8192 else Strip(8, 1024, 3, 4)


def stream_tiling(problem: Problem, machine: Machine, num_rows: int) -> Tiling:
    """Tiles for `num_rows` rows spread over the problem's experts."""
    mean = num_rows / problem.num_experts
    large = problem.num_weights * problem.dtype.itemsize >= LARGE_EXPERT
    return _hopper(mean, large=large) if machine.capability == HOPPER else _any(mean)


def _hopper(mean: float, *, large: bool) -> Tiling:
    from moesaic.kernels.streamed_experts import Blocks, Tiling  # noqa: PLC0415

    if mean <= 1:
        return Tiling(16, 0, Blocks(8, 128, 3), Blocks(16, 128, 3), 1, swap=False, tma=False)
    if mean <= 8:  # 3 to 6 % over the above on mixtral, 3 % on qwen3-30b
        return Tiling(16, 0, Blocks(16, 128, 3), Blocks(32, 128, 3), 2, swap=False, tma=False)
    if mean <= 20:
        return Tiling(32, 0, Blocks(64, 64, 4), Blocks(128, 64, 4), 4, swap=True, tma=True)
    if mean <= 44 and not large:
        return Tiling(32, 16, Blocks(64, 64, 3), Blocks(128, 64, 3), 4, swap=True, tma=True)
    if mean <= 72:
        return Tiling(64, 16, Blocks(64, 64, 3), Blocks(128, 64, 3), 4, swap=True, tma=True)
    return Tiling(128, 32, Blocks(128, 64, 4), Blocks(256, 64, 4), 8, swap=True, tma=True)


def _any(mean: float) -> Tiling:
    """Within the 99 KB of shared memory that sm_86, sm_89 and sm_120 have; not measured."""
    from moesaic.kernels.streamed_experts import Blocks, Tiling  # noqa: PLC0415

    if mean <= 8:
        return Tiling(16, 0, Blocks(16, 128, 3), Blocks(32, 128, 3), 2, swap=False, tma=False)
    if mean <= 24:
        return Tiling(32, 0, Blocks(32, 64, 4), Blocks(64, 64, 4), 4, swap=False, tma=False)
    if mean <= 48:
        return Tiling(64, 0, Blocks(64, 64, 3), Blocks(128, 64, 3), 4, swap=False, tma=False)
    return Tiling(128, 0, Blocks(64, 32, 4), Blocks(64, 32, 4), 8, swap=False, tma=False)
