"""without_interrupts: a process started inside gets no Ctrl-C of the terminal; the one that started it does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def without_interrupts() -> Generator[None, None, None]:
    """SIGINT is held back inside, and what is started inherits that for good; Windows has no such masks.

    A terminal sends Ctrl-C to every process of the group. The second one would die of it in the middle of a job, or of
    its imports, and print a traceback beside the answer of the first, which ends it anyway.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it lets the signal through again when it starts, so it starts before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
