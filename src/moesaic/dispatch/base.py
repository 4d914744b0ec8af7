"""Dispatcher: WHERE rows are computed; brings rows to their experts, and results back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxtyping import Float
from torch import Tensor

from moesaic.batches import Batch, Routing
from moesaic.dispatch.load_recorder import LoadRecorder
from moesaic.layouts import Layout
from moesaic.quant import Format, Plain

Receipt = TypeVar("Receipt")


@dataclass(frozen=True)
class Dispatcher(ABC, Generic[Receipt]):
    """One way to bring rows to their experts. Frozen: what `combine` needs is in the receipt, so calls never meet."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How the rows that `dispatch` returns lie."""

    @property
    @abstractmethod
    def synchronises(self) -> bool:
        """Whether `dispatch` or `combine` waits for the device on the host (it then cannot be captured in a graph)."""

    @property
    def rounding(self) -> Format:
        """What tokens are rounded to on their way: the answer is that of one rank whose tokens were rounded so.

        `Plain()`, which leaves them as they are, unless a dispatcher says otherwise. Results are never rounded to it.
        """
        return Plain()

    @abstractmethod
    def num_experts(self, num_local: int) -> int:
        """How many experts of the model tokens can reach if this rank holds `num_local`."""

    def agree(self, num_local: int, facts: Mapping[str, str]) -> None:
        """Called once when a layer is built, with what it was told: compare it with the other ranks.

        `num_local`: experts that this rank's problem is for. Raises DispatchError, the same on all ranks.
        """

    def withdraw(self) -> None:
        """Called in place of `dispatch` by a rank whose own error leaves it without tokens to hand in.

        Where ranks announce what they send it says so to the others, whose `dispatch` is a DispatchError then. It does
        nothing where they announce nothing: there they wait for this rank until their time is over.
        """

    @abstractmethod
    def dispatch(self, hidden_states: Float[Tensor, "T H"], routing: Routing) -> tuple[Batch, Receipt]:
        """Rows for this rank's experts, with local ids, and what `combine` needs."""

    def dispatch_counted(
        self, hidden_states: Float[Tensor, "T H"], routing: Routing, recorder: LoadRecorder, layer: int
    ) -> tuple[Batch, Receipt]:
        """`dispatch`, whose ids are counted as those of `layer` in `recorder`; not if the call is refused.

        Here by `recorder.record`, one launch on CUDA. A dispatcher with a kernel that reads every id of this rank's
        tokens may count them there instead, each once, whichever ranks the token goes to: what is counted is the same.
        Raises DispatchError, before anything is sent, for a layer that is none and ids that are not on its device.
        """
        try:
            if isinstance(routing, Routing):  # or `dispatch` says what is wrong
                recorder.checked(layer, routing.topk_ids)
        except BaseException:
            self.withdraw()
            raise
        found = self.dispatch(hidden_states, routing)
        recorder.record(layer, routing.topk_ids)
        return found

    @abstractmethod
    def combine(self, rows: Tensor, receipt: Receipt) -> Float[Tensor, "T H"]:
        """The layer's output in token order; rows that are still unweighted are weighted and summed in float32."""
