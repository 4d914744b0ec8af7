"""Numba's parallel loops, on as many threads as torch uses.

On Linux both share one OpenMP library and its threads, so neither waits for the other's spinning threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba
import torch


def parallel_loop(function: Callable[..., None]) -> Callable[..., None]:
    """Compile `function` at its first call in a process (2 s), `numba.prange` in parallel.

    The machine code is not kept on disk: Numba's cache looks at this function's file only, and would go on with an old
    kernel after the file that generates its instructions has changed.
    """
    return numba.njit(parallel=True, nogil=True)(function)


def is_usable() -> bool:
    """Whether Numba compiles here, for this very processor, and runs on OpenMP, the layer that threads may share.

    NUMBA_DISABLE_JIT, NUMBA_CPU_NAME, NUMBA_CPU_FEATURES and NUMBA_THREADING_LAYER can each stand against it.
    """
    if numba.config.DISABLE_JIT or numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        return False
    threads = torch.get_num_threads()
    try:
        numba.get_num_threads()  # starts the threads
        return numba.threading_layer() == "omp"
    except ValueError:  # no layer could be loaded
        return False
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def as_many_threads_as_torch() -> Iterator[None]:
    """Set the calling thread's number of Numba threads for the block, and put back what it was.

    When Numba starts its threads it sets OpenMP's number for the calling thread, and with it torch's: undone here.
    """
    wanted = torch.get_num_threads()
    before = numba.get_num_threads()
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    usable = min(wanted, numba.config.NUMBA_NUM_THREADS)
    if usable == before:  # as it nearly always is: 4 microseconds less
        yield
        return
    numba.set_num_threads(usable)
    try:
        yield
    finally:
        numba.set_num_threads(before)
