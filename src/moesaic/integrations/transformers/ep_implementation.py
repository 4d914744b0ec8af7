"""moesaic's dispatchers as `EPImplementation`s, of which transformers makes one for each experts module (5.23 on)."""

from __future__ import annotations

from functools import partial
from typing import final

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.distributed.expert_parallel import EPImplementation, EPImplementationInterface
from typing_extensions import override

from moesaic.integrations.transformers.dispatched import DISPATCHERS, DispatchedExperts


@final
class DispatcherEP(EPImplementation):
    """Whatever batches the ranks hold: those of one tensor-parallel group share theirs."""

    def __init__(self, experts: nn.Module, ep_mesh: DeviceMesh, tp_mesh: DeviceMesh, *, dispatcher: str) -> None:
        super().__init__(experts, ep_mesh, tp_mesh)
        groups = (ep_mesh.get_group(), tp_mesh.get_group())
        self.dispatched = DispatchedExperts(experts, dispatcher, *groups, ep_mesh.device_type)

    @override
    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        return self.dispatched(hidden_states, top_k_index, top_k_weights)


def register() -> None:
    """Make the names of `DISPATCHERS` known to `DistributedConfig.ep_implementation`."""
    for name in DISPATCHERS:
        EPImplementationInterface.register(name, partial(DispatcherEP, dispatcher=name))
