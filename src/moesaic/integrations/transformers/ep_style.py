"""moesaic's dispatchers as parallel styles, for transformers before `EPImplementation` (5.17)."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.distributed.tensor_parallel import (
    ALL_PARALLEL_STYLES,  # pyright: ignore[reportPrivateImportUsage] - its place in 5.17
    TensorParallelLayer,
)
from typing_extensions import override

from moesaic.integrations.transformers.dispatched import DISPATCHERS, DispatchedExperts


@final
class DispatcherStyle(TensorParallelLayer):
    """A rule for experts modules whose parameters have the rule `grouped_gemm`; all ranks hold the same batch."""

    def __init__(self, dispatcher: str) -> None:
        self.dispatcher = dispatcher

    @override
    def should_use_local_tensors(self, module: nn.Module) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return True

    @override
    def install_forward(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        group = mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp")
        dispatched = DispatchedExperts(module, self.dispatcher, group, group, mesh.device_type)

        def forward(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
            with self.context_around_forward(module, mesh):
                return dispatched(hidden_states, top_k_index, top_k_weights)

        module.forward = forward
        return module


def register() -> None:
    """Make the names of `DISPATCHERS` known as styles of a plan."""
    for name in DISPATCHERS:
        ALL_PARALLEL_STYLES.register(name, DispatcherStyle(name))  # pyright: ignore[reportArgumentType]
