"""What the exit code of `moesaic` says, for scripts."""

from __future__ import annotations

from enum import IntEnum
from typing import final


@final
class ExitCode(IntEnum):
    """0: done, or yes. 1: the answer is no. 2: the input was bad, and one line on stderr says how to change it.

    130: interrupted, by Ctrl-C or SIGTERM.
    """

    DONE = 0
    NO = 1
    BAD_INPUT = 2
    INTERRUPTED = 130
