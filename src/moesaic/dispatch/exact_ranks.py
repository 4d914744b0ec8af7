"""ExactRanks: dispatchers with exact buffers: Standard batches, one wait on the host, and sums that travel back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import override

from moesaic.dispatch.announcement import refuse_gradients, withdraw
from moesaic.dispatch.over_ranks import OverRanks
from moesaic.dispatch.partial_sums import SumReceipt, sum_back
from moesaic.layouts import Layout, Standard


@dataclass(frozen=True)
class ExactRanks(OverRanks[SumReceipt]):
    """Each rank's experts weight and sum, and its sums travel back."""

    @property
    @override
    def layout(self) -> Layout:
        """`Standard()`: the host knows how many rows come, so each is a token."""
        return Standard()

    @property
    @override
    def synchronises(self) -> bool:
        """True: once in a dispatch, for the number of rows; not in `combine`."""
        return True

    @override
    def withdraw(self) -> None:
        """Tells the other ranks."""
        withdraw(self.ranks, owner=self.name)

    @override
    def combine(self, rows: Tensor, receipt: SumReceipt) -> Tensor:
        """Raises BatchError for rows of another batch, GradientError for rows that require gradients."""
        refuse_gradients(rows)
        return sum_back(self.ranks, rows, receipt, owner=self.name)
