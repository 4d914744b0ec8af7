"""Memory that the backend allocates and does not fill holds anything, and none of it reaches a live row."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.utils import deterministic
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from moesaic.conformance.case import Case
from moesaic.conformance.checks.base import Check
from moesaic.conformance.feeding import CALM
from moesaic.conformance.subject import Subject

ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
"""The operators whose result is uninitialised."""


@final
@dataclass(frozen=True)
class FreshMemory(Check):
    """What `torch.empty` and its kin return in Python is filled with NaN, 1e4 and infinity before the backend sees it.

    Meant for F15, F18, F20, F25 and F58: an accumulator, a workspace, a padded tail or an output row that is read
    before it is written. On a CPU, a fourth run fills what torch's own operators allocate inside C++ (only those that
    go through `at::empty`) with NaN, with torch's deterministic mode, against one in that mode with the filling off.
    On CUDA the caching allocator's free blocks are filled instead. Not covered: memory that a kernel allocates itself.
    """

    name: ClassVar[str] = "fresh_memory"
    meaning: ClassVar[str] = "uninitialised memory of the call's own changes no bit of a live row"

    @override
    def run(self, subject: Subject, case: Case) -> None:
        prepared, fed = subject.prepare(case), subject.feed(case, CALM)
        calm = subject.rows(case, fed, prepared)
        for value in (math.nan, 1e4, math.inf):
            if subject.device.type == "cuda":
                _dirty(subject, case, fed.live.numel(), value)
            with Filled(value):
                got = subject.rows(case, fed, prepared)
            subject.same(case, got, calm, f"live rows over uninitialised memory that holds {value}")
        if subject.device.type == "cpu":
            with _deterministic(fill=False):
                calm = subject.rows(case, fed, prepared)
            with _deterministic(fill=True):
                got = subject.rows(case, fed, prepared)
            subject.same(case, got, calm, "live rows over memory of torch's operators that holds NaN")


@final
class Filled(TorchDispatchMode):
    """Fills what Python code allocates without initialising; integers with their largest value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in ALLOCATIONS and isinstance(result, Tensor):
            if result.is_floating_point():
                result.fill_(_held(self.value, result.dtype))
            elif result.dtype != torch.bool:
                result.fill_(torch.iinfo(result.dtype).max)
        return result


def _held(value: float, dtype: torch.dtype) -> float:
    """`value`, or what `dtype` has instead: its largest number, and NaN where there is no infinity (FP8)."""
    if value == math.inf and dtype.itemsize == 1:
        return math.nan
    return min(value, torch.finfo(dtype).max) if value < math.inf else value


@contextmanager
def _deterministic(*, fill: bool) -> Generator[None]:
    """Torch's deterministic mode, in which `at::empty` is filled if `fill`; the mode is as before afterwards."""
    mode, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switch: Any = deterministic  # the module has the switch as a property, which type checkers do not see
    filled = switch.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    switch.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        switch.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(mode, warn_only=warn)


def _dirty(subject: Subject, case: Case, num_rows: int, value: float) -> None:
    """Leave free blocks that hold `value` with CUDA's caching allocator, as many bytes as the call may take."""
    size = max(1 << 20, 2 * subject.backend.workspace(case.problem, num_rows))
    blocks = [torch.full((size // 4,), value, device=subject.device) for _ in range(2)]
    blocks += [torch.full((n // 4,), value, device=subject.device) for n in (512, 4096, 65536) for _ in range(16)]
    del blocks
