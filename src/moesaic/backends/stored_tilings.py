"""Which tiles for how many rows, with weights as stored; measured on an H200 (docs/performance/quantized.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.machine import Machine
from moesaic.problem import Problem

if TYPE_CHECKING:
    from moesaic.kernels.stored_experts import StoredTiling
    from moesaic.kernels.stored_form import StoredForm

HOPPER = 90


def stored_tiling(problem: Problem, machine: Machine, num_rows: int, form: StoredForm, *, coded: bool) -> StoredTiling:
    """Tiles for `num_rows` rows spread over the problem's experts; `coded`: rows are codes too."""
    mean = num_rows / problem.num_experts
    if machine.capability != HOPPER:
        return _any(mean)
    # TMA copies rows that lie at multiples of 16 bytes; packed ones always do.
    tma = form.packed or (problem.hidden_size % 16 == 0 and problem.intermediate_size % 16 == 0)
    return _coded(mean, tma=tma) if coded else _read_back(mean, form, tma=tma)


def _coded(mean: float, *, tma: bool) -> StoredTiling:
    """Codes times codes, which wgmma takes from shared memory as they arrive."""
    from moesaic.kernels.stored_experts import StoredTiling  # noqa: PLC0415

    if mean <= 8:
        return StoredTiling(16, up=64, down=128 if 0.25 < mean <= 2 else 64, stages=4, warps=4, swap=True, tma=tma)
    if mean <= 40:
        return StoredTiling(32, up=64, down=128, stages=3, warps=4, swap=True, tma=tma)
    return StoredTiling(64, up=64, down=128, stages=3, warps=4, swap=True, tma=tma)


def _read_back(mean: float, form: StoredForm, *, tma: bool) -> StoredTiling:
    """Codes that become numbers in registers; scaled there too if they are inside, so that rows should be many."""
    from moesaic.kernels.stored_experts import StoredTiling  # noqa: PLC0415

    if mean <= 8 and form.inside:
        return StoredTiling(16, up=32, down=32, stages=4, warps=4, swap=False)
    if mean <= 8:
        return StoredTiling(16, up=32, down=64, stages=4, warps=2, swap=False)
    if mean <= 40:
        return StoredTiling(32, up=64, down=128, stages=3, warps=4, swap=True, tma=tma)
    if form.inside and not form.zero_point:  # with one, 128 rows spill a register
        return StoredTiling(128, up=64, down=128, stages=3, warps=4, swap=True)
    return StoredTiling(64, up=64, down=128, stages=3, warps=4, swap=True, tma=tma)


def _any(mean: float) -> StoredTiling:
    """Within the shared memory of every GPU; not measured."""
    from moesaic.kernels.stored_experts import StoredTiling  # noqa: PLC0415

    rows = 16 if mean <= 8 else 32 if mean <= 24 else 64
    # On sm_80 registers spill with 64 of down, and with 4 warps for 64 rows.
    return StoredTiling(rows, up=32, down=32, stages=2, warps=8 if rows == 64 else 4, swap=False)
