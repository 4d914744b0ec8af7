"""Budget: seconds that may be spent, by a clock that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from moesaic.checks import finite_number
from moesaic.errors import TuningError


@final
@dataclass(frozen=True)
class Budget:
    """Seconds from `begun` on, by the clock `now`."""

    seconds: float
    now: Callable[[], float]
    begun: float

    @classmethod
    def of(cls, seconds: float, now: Callable[[], float]) -> Budget:
        """A budget that begins to run."""
        limit = finite_number("Budget", "seconds", seconds, TuningError)
        if limit <= 0:
            raise TuningError(f"Budget.seconds is {limit}, but it needs more than 0")
        return cls(limit, now, now())

    @property
    def left(self) -> float:
        """Seconds that are left; 0 or less if none are."""
        return self.seconds - (self.now() - self.begun)

    @property
    def spent(self) -> bool:
        """Whether no time is left."""
        return self.left <= 0

    def share(self, parts: int) -> Budget:
        """The first of so many equal parts of what is left, from now on."""
        return Budget(self.left / parts, self.now, self.now())
