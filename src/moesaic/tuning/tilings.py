"""Which tiles for how many rows of an expert, with their weights streamed.

Few rows an expert: weights are read once and nothing else counts. One warp a program needs no barrier, thirteen of
them on a multiprocessor keep the memory busy, and the last wave is short. From about 8 rows on wgmma is worth its 64
rows of weights, from 20 on a tile should take an expert whole, since a second pass would read its weights again.
"""

from __future__ import annotations

from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning.choices import Streamed

HOPPER = 90

LARGE_EXPERT = 64 * 2**20
"""Bytes of an expert's weights from which a tile of 64 rows serves a mean of 32 best (mixtral 3 %, dsv3 0; qwen3-30b,
with 9 MB, loses 3 %). A second pass over a smaller expert may find it in L2, which holds 50 MiB on an H200."""

HOPPER_TILINGS: tuple[tuple[float, Streamed], ...] = (
    (1, Streamed(16, 0, (8, 128, 3), (16, 128, 3), warps=1, swap=False, tma=False)),
    (8, Streamed(16, 0, (16, 128, 3), (32, 128, 3), warps=2, swap=False, tma=False)),  # 3 to 6 % on mixtral
    (20, Streamed(32, 0, (64, 64, 4), (128, 64, 4), warps=4, swap=True, tma=True)),
    (44, Streamed(32, 16, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True)),
    (72, Streamed(64, 16, (64, 64, 3), (128, 64, 3), warps=4, swap=True, tma=True)),
    (float("inf"), Streamed(128, 32, (128, 64, 4), (256, 64, 4), warps=8, swap=True, tma=True)),
)
"""Mean rows of an expert up to which a tiling is best, measured on an H200 (docs/performance/hopper.md)."""

OTHER_TILINGS: tuple[tuple[float, Streamed], ...] = (
    (8, Streamed(16, 0, (16, 128, 3), (32, 128, 3), warps=2, swap=False, tma=False)),
    (24, Streamed(32, 0, (32, 64, 4), (64, 64, 4), warps=4, swap=False, tma=False)),
    (48, Streamed(64, 0, (64, 64, 3), (128, 64, 3), warps=4, swap=False, tma=False)),
    (float("inf"), Streamed(128, 0, (64, 32, 4), (64, 32, 4), warps=8, swap=False, tma=False)),
)
"""The same for every other GPU, within the 99 KB of shared memory that sm_86, sm_89 and sm_120 have; not measured."""


def tilings(machine: Machine) -> tuple[tuple[float, Streamed], ...]:
    """The tilings for the machine's architecture, from few rows to many."""
    return HOPPER_TILINGS if machine.capability == HOPPER else OTHER_TILINGS


def step_for_mean(problem: Problem, machine: Machine, num_rows: int) -> int:
    """Which of `tilings(machine)` suits `num_rows` rows spread over the problem's experts."""
    mean = num_rows / problem.num_experts
    step = next(step for step, (most, _) in enumerate(tilings(machine)) if mean <= most)
    large = problem.num_weights * problem.dtype.itemsize >= LARGE_EXPERT
    is_shared_by_two_passes = tilings(machine)[step][1].tile_rows == 48
    return step + 1 if large and is_shared_by_two_passes else step
