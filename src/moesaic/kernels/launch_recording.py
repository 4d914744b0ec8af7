"""Recording: what one call allocates and launches, from which `replayed_launches.py` makes the same call again.

A call is complete if nothing else happened: memory was allocated, looked at in another shape, and given to kernels that
went past Triton (`direct_launch.py`). Any other operation of torch, a copy for instance, would be missing in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _pop_mode,  # pyright: ignore[reportPrivateUsage]
    _push_mode,  # pyright: ignore[reportPrivateUsage]
)
from typing_extensions import override

from moesaic.kernels.direct_launch import RECORDER, DirectLaunch, Known

aten = torch.ops.aten

ALLOCATIONS = frozenset({aten.empty, aten.new_empty, aten.empty_like, aten.empty_strided})
VIEWS = frozenset(
    {
        *(aten.view, aten.slice, aten.select, aten.split, aten.split_with_sizes, aten.as_strided),
        *(aten.detach, aten.alias, aten.squeeze, aten.unsqueeze, aten.expand, aten.permute, aten.transpose, aten.t),
    }
)
"""Operations without an effect on any memory."""


@final
@dataclass(frozen=True, eq=False)
class Launched:
    """A kernel with what it was launched on; `options` are its constants and options by name."""

    kernel: DirectLaunch
    known: Known
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@final
@dataclass(eq=False)
class Calls:
    """What was seen so far. `other`: the first thing that a replay would lack, empty if there is none."""

    launches: list[Launched] = field(default_factory=list)
    allocated: list[Tensor] = field(default_factory=list)
    other: str = ""

    def launched(
        self,
        kernel: DirectLaunch,
        known: Known | None,
        grid: tuple[int, int, int],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """Note a launch; `known` is None if it went through Triton."""
        if known is None:
            self.other = self.other or f"{kernel.fn.__name__} through triton"
        else:
            self.launches.append(Launched(kernel, known, grid, arguments, options))


@final
class Recording(TorchDispatchMode):
    """The operations of torch, inside."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls

    @override
    def __enter__(self) -> Recording:
        # Only the thread's own stack. Torch's method also notes for the whole process that there is a mode, which two
        # threads that overlap leave noted for good; torch.compile, where it goes by that note, then skips everything.
        _push_mode(self)
        return self

    @override
    def __exit__(self, *_: object) -> None:
        _pop_mode()

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in ALLOCATIONS:
            self.calls.allocated.append(result)
        elif func.overloadpacket not in VIEWS:
            self.calls.other = self.calls.other or str(func)
        return result


@contextmanager
def recorded_calls() -> Generator[Calls]:
    """Inside, what this thread allocates and launches is noted, and kept alive until the answer is dropped."""
    calls = Calls()
    told: Callable[..., None] = calls.launched
    before = RECORDER.set(told)
    try:
        with Recording(calls):
            yield calls
    finally:
        RECORDER.reset(before)
