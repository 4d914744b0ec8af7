"""Times: how long several calls took, in the middle and how far apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Times:
    """Seconds: the median, and the 10th and 90th percentile, between which four calls of five are."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, taken: Sequence[float]) -> Times:
        """Those of the calls that took the seconds `taken`, interpolated between neighbours; at least one."""
        if len(taken) == 1:
            return cls(*taken, *taken, *taken)
        tenths = statistics.quantiles(taken, n=10, method="inclusive")
        return cls(statistics.median(taken), tenths[0], tenths[-1])
