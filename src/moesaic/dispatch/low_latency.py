"""LowLatency: rows in a slab for each expert, for few tokens, without waiting on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from typing_extensions import override

from moesaic.checks import flag
from moesaic.dispatch.by_expert import SlabPerExpert
from moesaic.dispatch.padded_ranks import PaddedRanks
from moesaic.errors import DispatchError


@final
@dataclass(frozen=True)
class LowLatency(PaddedRanks):
    """BatchedExperts of N * C rows an expert, of which the first `counts[e]` are valid.

    So a batch is `L * N * C * H` elements, of which most are never touched: for decoding. A token that names an expert
    twice may find its slab full; its output is NaN then. `weight_on_input`: the router weight is multiplied into the
    rows on their way.
    """

    weight_on_input: bool = False

    def __post_init__(self) -> None:
        flag(self.name, "weight_on_input", self.weight_on_input, DispatchError)
        super().__post_init__()

    @property
    @override
    def arrangement(self) -> SlabPerExpert:
        return SlabPerExpert(weight_on_input=self.weight_on_input)
