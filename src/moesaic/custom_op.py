"""The torch.library operator behind a bound layer, so that `torch.compile(fullgraph=True)` keeps one graph.

The operator takes the batch as tensors and the layer as an opaque object, which torch passes through graphs by
reference (`torch._library.opaque_object`, torch 2.11 to 2.14; why not a handle into a table: docs/design/compile.md).
"""

# No `from __future__ import annotations` here: torch infers the operator's schema from real annotations.
from pickle import PicklingError
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase

from moesaic.backends.base import Backend
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, Routing, StandardBatch
from moesaic.problem import Problem


class BoundBackend(OpaqueBase):
    """A backend, the weights it prepared and their problem: the only place where the pair is held together."""

    def __init__(self, backend: Backend[Any], prepared: Any, problem: Problem) -> None:
        self.backend = backend
        self.prepared = prepared
        self.problem = problem

    def __deepcopy__(self, memo: dict[int, Any]) -> "BoundBackend":
        """Itself: torch 2.11 copies what a graph refers to before it traces, which would hold the weights twice."""
        return self

    def __reduce__(self) -> NoReturn:
        """A graph that holds a layer is of this process: torch's cache of compiled graphs would write all weights."""
        raise PicklingError("a bound layer has no written form: pickle the Experts, or save their canonical weights")

    def run(self, batch: Batch) -> Tensor:
        """Compute `batch` in the problem's own dtype: autocast, if it is on, stays outside."""
        device = batch.rows.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.backend.run(batch, self.prepared, self.problem)
        return self.backend.run(batch, self.prepared, self.problem)


register_opaque_type(BoundBackend, typ="reference")


@torch.library.custom_op("moesaic::experts", mutates_args=())
def experts(tensors: list[Tensor], bound: BoundBackend, kind: str, alignment: int) -> Tensor:
    """Run the experts on a batch that came as tensors; the rows come back contiguous, as the fake below promises."""
    return bound.run(_assemble(tensors, kind, alignment)).contiguous()


@experts.register_fake
def _(tensors: list[Tensor], bound: BoundBackend, kind: str, alignment: int) -> Tensor:
    del bound, kind, alignment
    return torch.empty_like(tensors[0], memory_format=torch.contiguous_format)


def run_as_operator(batch: Batch, bound: BoundBackend) -> Tensor:
    """Compute `batch` through the operator."""
    match batch:
        case GroupedBatch():
            return experts([batch.rows, batch.offsets, batch.counts], bound, "grouped", batch.alignment)
        case BatchedBatch():
            return experts([batch.rows, batch.counts], bound, "batched", 1)
        case StandardBatch():
            return experts([batch.hidden_states, *_routing(batch.routing)], bound, "standard", 1)
        case PaddedStandardBatch():
            valid = [] if batch.num_valid is None else [batch.num_valid]
            return experts([batch.hidden_states, *_routing(batch.routing), *valid], bound, "padded", 1)


def _routing(routing: Routing) -> tuple[Tensor, Tensor]:
    return routing.topk_ids, routing.topk_weights


def _assemble(tensors: list[Tensor], kind: str, alignment: int) -> Batch:
    match kind:
        case "grouped":
            return GroupedBatch(*tensors, alignment=alignment)
        case "batched":
            return BatchedBatch(*tensors)
        case "standard":
            return StandardBatch(tensors[0], Routing(*tensors[1:]))
        case _:
            return PaddedStandardBatch(tensors[0], Routing(*tensors[1:3]), *tensors[3:])
