"""Clock: how long one call takes on a device, with cold caches, because a model's other layers empty them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from typing_extensions import override

COLD_BYTES = 2**28
"""Size of the buffer read or written before each call: larger than the last cache of any device known."""


class Clock(ABC):
    """Times calls on one device."""

    @abstractmethod
    def seconds(self, call: Callable[[], object]) -> float:
        """How long `call` takes from cold caches, its own launch included where it cannot be hidden."""

    @abstractmethod
    def recorded(self, call: Callable[[], object]) -> Callable[[], object]:
        """`call` captured for replay where the device can, else `call` itself."""


@final
class CpuClock(Clock):
    """The monotonic clock of the host."""

    def __init__(self) -> None:
        self._cold = torch.ones(COLD_BYTES // 4)

    @override
    def seconds(self, call: Callable[[], object]) -> float:
        self._cold.sum()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    @override
    def recorded(self, call: Callable[[], object]) -> Callable[[], object]:
        return call


@final
class CudaClock(Clock):
    """CUDA events on the current stream; the write that empties the cache also hides the launch of the call."""

    def __init__(self, device: torch.device) -> None:
        self._cold = torch.empty(COLD_BYTES // 4, dtype=torch.int32, device=device)

    @override
    def seconds(self, call: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._cold.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    @override
    def recorded(self, call: Callable[[], object]) -> Callable[[], object]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()
