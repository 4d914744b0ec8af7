"""Local: every expert is on this rank, nothing moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing, StandardBatch
from moesaic.dispatch.base import Dispatcher
from moesaic.layouts import Layout, Standard


@final
@dataclass(frozen=True)
class Local(Dispatcher[None]):
    """Tokens go to the experts as they are, ids included."""

    @property
    @override
    def layout(self) -> Layout:
        return Standard()

    @property
    @override
    def synchronises(self) -> bool:
        return False

    @override
    def num_experts(self, num_local: int) -> int:
        return num_local

    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[StandardBatch, None]:
        return StandardBatch(hidden_states, routing), None

    @override
    def combine(self, rows: Tensor, receipt: None) -> Tensor:
        return rows
