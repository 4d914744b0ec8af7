"""The three streams of a process: closed ones are occupied, and what code of others prints is led to stderr."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

STDOUT, STDERR = 1, 2


def occupy() -> None:
    """Open the null device in place of each stream that is closed, as `2>&-` leaves it.

    Otherwise the next pipe takes its number, and a second process prints into what it should answer through.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  (what Python makes of `2>&-`)
        sys.stderr = open(STDERR, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  (for good)


@contextmanager
def prints_on_stderr() -> Generator[None]:
    """What is printed inside goes to stderr, so that the answer on stdout stays whole.

    What Python prints, and what libraries do that know the stream by its number.
    """
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    try:
        os.dup2(STDERR, STDOUT)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if sys.platform != "win32":
            ctypes.CDLL(None).fflush(None)  # C keeps what was printed until a buffer is full
        os.dup2(kept, STDOUT)
        os.close(kept)
