"""alone: one writer at a time in a directory, among all processes and threads of the machine that ask."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone(directory: Path) -> Generator[None]:
    """Wait until nobody else is inside for `directory`. The lock is the directory's own: no file is left behind.

    Where the file system has no locks of directories (NFS), or the platform none at all, nobody waits: then of two that
    write at one moment the second's file stays, whole.
    """
    try:
        from fcntl import LOCK_EX, flock  # noqa: PLC0415
    except ImportError:  # not on Windows, where triton has no kernels to measure either
        yield
        return
    opened = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            flock(opened, LOCK_EX)
        yield
    finally:
        os.close(opened)  # which unlocks
