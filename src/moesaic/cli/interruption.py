"""interruptible: Ctrl-C and SIGTERM end what runs in this block, and the processes that it started, once."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Generator[None, None, None]:
    """Inside, both signals kill the processes of `multiprocessing` and raise KeyboardInterrupt; then they are ignored.

    The second of two impatient Ctrl-C would otherwise leave half an answer, and a process behind: what follows in the
    block is to be quick. Off the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    for process in multiprocessing.active_children():
        process.kill()
    raise KeyboardInterrupt
