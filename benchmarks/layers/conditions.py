"""Conditions: how all cells of a run are measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from layers.clock import Clock
from layers.traffic import Traffic


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Conditions:
    """`peers`: names of those that run. `budget`: seconds after `start` (`time.monotonic`) when no cell is begun."""

    device: str
    clock: Clock
    traffic: Traffic
    rounds: int
    peers: Sequence[str]
    budget: float
    start: float

    @property
    def spent(self) -> bool:
        """Whether the budget is."""
        return time.monotonic() - self.start > self.budget
