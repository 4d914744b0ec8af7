"""Recorded: a dispatcher that also counts what each expert gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, Routing
from moesaic.checks import instance, whole_number
from moesaic.dispatch.base import Dispatcher, Receipt
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.dispatch.over_ranks import OverRanks
from moesaic.errors import DispatchError
from moesaic.layouts import Layout
from moesaic.quant import Format

RECORDED = "recorded"
"""The name of what the recorders of a layer tell the other ranks."""


@final
@dataclass(frozen=True)
class Recorded(Dispatcher[Receipt]):
    """`dispatcher`, whose calls are counted as those of `layer` in `recorder`; rows and results are as without.

    Counted are the ids of the model's experts that this rank hands in, once each, whichever replica computes them. A
    call that the dispatcher refuses is not counted. That is one launch more on CUDA, but none with `SymmetricMemory`,
    which counts in the launch that sends the tokens (`Dispatcher.dispatch_counted`). Raises DispatchError for a
    recorder without such a layer, or on another device than the tokens that ranks exchange.
    """

    dispatcher: Dispatcher[Receipt]
    recorder: LoadRecorder
    layer: int

    def __post_init__(self) -> None:
        instance("Recorded", "dispatcher", self.dispatcher, Dispatcher, DispatchError, example="Local()")
        instance("Recorded", "recorder", self.recorder, LoadRecorder, DispatchError, example="LoadRecorder(58, 256)")
        layer = whole_number("Recorded", "layer", self.layer, DispatchError, at_least=0)
        if layer >= self.recorder.num_layers:
            raise DispatchError(f"Recorded.layer is {layer}, but the recorder has {self.recorder.num_layers}, from 0")
        object.__setattr__(self, "layer", layer)
        inner = over_ranks(self.dispatcher)
        if inner is not None and inner.ranks.device != self.recorder.device:
            raise DispatchError(
                f"{self.recorder!r} counts on {self.recorder.device}, but the tokens of {inner.ranks} are on "
                f"{inner.ranks.device}: make it there"
            )

    @property
    @override
    def layout(self) -> Layout:
        return self.dispatcher.layout

    @property
    @override
    def synchronises(self) -> bool:
        return self.dispatcher.synchronises

    @property
    @override
    def rounding(self) -> Format:
        return self.dispatcher.rounding

    @override
    def num_experts(self, num_local: int) -> int:
        """Raises DispatchError if the recorder counts another number of experts."""
        reached = self.dispatcher.num_experts(num_local)
        if reached != self.recorder.num_experts:
            raise DispatchError(
                f"the recorder counts {self.recorder.num_experts} experts, but {self.dispatcher.__class__.__name__} "
                f"reaches {reached}: make it for as many"
            )
        return reached

    @override
    def agree(self, num_local: int, facts: Mapping[str, str]) -> None:
        """Raises DispatchError on every rank also if what is recorded differs: sums over ranks would be mixed up."""
        recorder = self.recorder
        own = f"layer {self.layer} of {recorder.num_layers} with {recorder.num_experts} experts"
        told = " and ".join([*filter(None, [facts.get(RECORDED)]), own])  # recorders around this one come first
        self.dispatcher.agree(num_local, {**facts, RECORDED: told})

    @override
    def withdraw(self) -> None:
        self.dispatcher.withdraw()

    @override
    def dispatch(self, hidden_states: Tensor, routing: Routing) -> tuple[Batch, Receipt]:
        return self.dispatcher.dispatch_counted(hidden_states, routing, self.recorder, self.layer)

    @override
    def combine(self, rows: Tensor, receipt: Receipt) -> Tensor:
        return self.dispatcher.combine(rows, receipt)


def over_ranks(dispatcher: Dispatcher[Any]) -> OverRanks[Any] | None:
    """The dispatcher inside any recorders, if it is one of ranks that know their placement."""
    while isinstance(dispatcher, Recorded):
        dispatcher = dispatcher.dispatcher
    return dispatcher if isinstance(dispatcher, OverRanks) else None
