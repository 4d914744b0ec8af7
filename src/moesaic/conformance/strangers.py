"""attempt: what code of strangers gives or raises. The one place beside a job's where any exception is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

T = TypeVar("T")


@final
@dataclass(frozen=True, eq=False)
class Raised:
    """What a call raised instead of returning."""

    fault: BaseException


def attempt(call: Callable[[], T]) -> T | Raised:
    """What `call` returns, or whatever it raises: its author may have written anything, also an exit.

    Only what the user does goes through: KeyboardInterrupt.
    """
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # noqa: BLE001
        return Raised(fault)
