"""PaddedAllToAll: a token travels once to each rank that has one of its experts, in buffers of the worst case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from moesaic.dispatch.arrangement import Arrangement, AsArrived
from moesaic.dispatch.by_expert import GroupedByExpert
from moesaic.dispatch.padded_ranks import PaddedRanks
from moesaic.errors import DispatchError


@final
@dataclass(frozen=True)
class PaddedAllToAll(PaddedRanks):
    """As `AllToAll`, without waiting on the host: `PaddedStandard`, or GroupedContiguous for many tokens.

    `laid`: `AsArrived()` or `GroupedByExpert(alignment)`. N * C rows travel each way, whatever the routing is.
    """

    laid: Arrangement = AsArrived()

    def __post_init__(self) -> None:
        if not isinstance(self.laid, AsArrived | GroupedByExpert):
            raise DispatchError(
                f"{self.name}.laid is {self.laid!r}, but it needs AsArrived() or GroupedByExpert(alignment); slabs are "
                "what LowLatency makes"
            )
        super().__post_init__()

    @property
    @override
    def arrangement(self) -> Arrangement:
        return self.laid
