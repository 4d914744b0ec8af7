"""Telling: a second process tells the first one when it imports a module, so that this is not taken for a call."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, final

from typing_extensions import override

IMPORTING = "importing"
"""What is sent before each module that is not there yet."""


@final
class Telling(MetaPathFinder):
    """Sends over `pipe` what it is asked to, and IMPORTING by itself. As a finder it finds nothing.

    Python asks its finders for each module once, just before it looks for it, whichever thread imports it.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._at_once = threading.RLock()  # a message in the middle of another; what is sent may import too
        self._owner = os.getpid()

    def send(self, message: object) -> None:
        """Send one message, whole."""
        with self._at_once:
            self._pipe.send(message)

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if os.getpid() == self._owner:  # a process that the backend forked has the pipe too
            self.send(IMPORTING)
        return None

    @contextmanager
    def at_imports(self) -> Generator[None]:
        """Imports are told inside."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
