"""How rows lie between a dispatcher and an expert backend, as values without tensors.

Dimensions: T tokens, K slots per token, L local experts, H hidden size, R rows, C capacity of one expert.
An expert id outside `[0, L)` marks an inactive slot, whatever its value. Undefined memory may hold anything, NaN
included, and never influences a defined row. Source of the vocabulary: vLLM's activation formats, DeepGEMM's
contiguous and masked layouts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from typing_extensions import override

from moesaic.checks import whole_number
from moesaic.errors import LayoutError


@dataclass(frozen=True)
class Layout(ABC):
    """How the rows of a batch lie. `accepts` is directional: may a consumer of self be fed `produced`?"""

    @property
    @abstractmethod
    def has_routing(self) -> bool:
        """True if the batch carries routing and the backend weights and sums; False if rows go back unweighted."""

    @abstractmethod
    def accepts(self, produced: Layout) -> bool:
        """Whether rows laid out as `produced` keep every promise that this layout makes."""


@final
@dataclass(frozen=True)
class Standard(Layout):
    """`[T, H]` in token order with routing `[T, K]`; every row is defined, a slot may be inactive.

    The backend weights, sums over K in float32 and returns `[T, H]`; a row without an active slot returns zeros.
    """

    @property
    @override
    def has_routing(self) -> bool:
        return True

    @override
    def accepts(self, produced: Layout) -> bool:
        return isinstance(produced, Standard)


@final
@dataclass(frozen=True)
class PaddedStandard(Layout):
    """As Standard, but a row whose slots are all inactive is undefined memory, and so is its output row.

    The batch may carry the number of valid rows as a device scalar, which is never read on the host.
    """

    @property
    @override
    def has_routing(self) -> bool:
        return True

    @override
    def accepts(self, produced: Layout) -> bool:
        return isinstance(produced, Standard | PaddedStandard)


@final
@dataclass(frozen=True)
class GroupedContiguous(Layout):
    """`[R, H]` in expert order: expert e owns rows `offsets[e]` to `offsets[e] + counts[e]`; gaps are undefined.

    Offsets are multiples of `alignment` and do not decrease. Rows return unweighted, in their places.
    """

    alignment: int = 1

    def __post_init__(self) -> None:
        alignment = whole_number("GroupedContiguous", "alignment", self.alignment, LayoutError)
        object.__setattr__(self, "alignment", alignment)

    @property
    @override
    def has_routing(self) -> bool:
        return False

    @override
    def accepts(self, produced: Layout) -> bool:
        return isinstance(produced, GroupedContiguous) and produced.alignment % self.alignment == 0


@final
@dataclass(frozen=True)
class BatchedExperts(Layout):
    """`[L, C, H]`: the first `counts[e]` of C rows of expert e are defined. Rows return unweighted, in their places."""

    @property
    @override
    def has_routing(self) -> bool:
        return False

    @override
    def accepts(self, produced: Layout) -> bool:
        return isinstance(produced, BatchedExperts)
