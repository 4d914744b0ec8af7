"""triton_kernels in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from layers.contender import Bound
from layers.exact import Activation, clamped_swiglu
from peers.bundle import Bundle
from peers.bundled import Bundled
from peers.triton_kernels_layer import TOLERANCE, TRITON_KERNELS, layer

from moesaic import ExpertWeights, Problem


@final
@dataclass(frozen=True)
class TritonKernels(Bundled):
    """Its own choice of tiles."""

    name: str = "triton_kernels"
    tolerance: float | None = TOLERANCE
    bundle: ClassVar[Bundle] = TRITON_KERNELS
    activation: ClassVar[Activation] = staticmethod(clamped_swiglu)

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """The weights as they are, read transposed; their rows count as gate and up in turns."""
        TRITON_KERNELS.enter()
        from triton_kernels.matmul_ogs import PrecisionConfig  # noqa: PLC0415
        from triton_kernels.matmul_ogs_details.opt_flags import reset_opt_flags_constraints  # noqa: PLC0415

        reset_opt_flags_constraints()
        gate_up, down = (part.data.transpose(1, 2) for part in (weights.gate_up, weights.down))
        return layer(problem, gate_up, down, (PrecisionConfig(), PrecisionConfig()))
