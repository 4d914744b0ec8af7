"""ChosenWeights: weights on a device, and what each number of rows is computed by, asked once for each number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from moesaic.backends.device_weights import DeviceWeights
from moesaic.backends.replays import Replays
from moesaic.backends.triton_tilings import Launch, launch_of
from moesaic.tuning.choosing import Chooser

REMEMBERED = 4096
"""Numbers of rows whose launches are kept: some 100 bytes each. A layer that sees more begins anew."""


@final
@dataclass(frozen=True, eq=False)
class ChosenWeights:
    """A choice takes some 10 us of the host, a whole call is to take less than 60: each is made once."""

    weights: DeviceWeights
    chooser: Chooser
    replays: Replays = field(default_factory=Replays, init=False, repr=False)
    """Calls on tokens that were made before."""
    _known: dict[int, Launch] = field(default_factory=dict[int, Launch], init=False, repr=False)

    def launch(self, num_rows: int) -> Launch:
        """What `num_rows` rows are computed by; at least one."""
        known = self._known.get(num_rows)
        if known is None:
            known = launch_of(self.chooser(num_rows))
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[num_rows] = known  # of two threads that meet here both write the same
        return known
