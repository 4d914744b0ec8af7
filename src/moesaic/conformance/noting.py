"""repeated_by: what repeats a failing test is said in the failure itself."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def repeated_by(command: str) -> Generator[None, None, None]:
    """An exception that leaves the block carries `command` as a note, which pytest prints below its message."""
    try:
        yield
    except BaseException as fault:
        fault.add_note(f"repeat: {command}")
        raise


def pytest_command(request: Any) -> str:
    """The command line that runs one test again; `request` is pytest's fixture of that name."""
    return f"pytest {shlex.quote(request.node.nodeid)}"
