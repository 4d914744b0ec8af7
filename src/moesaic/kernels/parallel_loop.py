"""Numba's parallel loops, compiled once for all processes, on as many threads as torch uses.

On Linux both share one OpenMP library and its threads, so neither waits for the other's spinning threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numba
import torch


def parallel_loop(function: Callable[..., None]) -> Callable[..., None]:
    """Compile `function` at its first call, `numba.prange` in parallel; keep the machine code where a place is found.

    That is beside the source, else in the user's cache directory; where neither can be written, each process compiles
    anew (2 s) instead of failing.
    """
    compiled: Any = numba.njit(parallel=True, nogil=True)(function)
    with suppress(RuntimeError):  # "no locator available"
        compiled.enable_caching()
    return compiled


@contextmanager
def as_many_threads_as_torch() -> Iterator[None]:
    """Set the calling thread's number of Numba threads for the block, and put back what it was.

    When Numba starts its threads it sets OpenMP's number for the calling thread, and with it torch's: undone here.
    """
    wanted = torch.get_num_threads()
    before = numba.get_num_threads()
    numba.set_num_threads(min(wanted, numba.config.NUMBA_NUM_THREADS))
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        numba.set_num_threads(before)
