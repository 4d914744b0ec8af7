"""triton_kernels with weights in MXFP4, in its layout for Hopper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from layers.contender import Bound
from layers.exact import Activation, clamped_swiglu
from peers.bundle import Bundle
from peers.bundled import Bundled
from peers.triton_kernels_layer import TOLERANCE, TRITON_KERNELS, layer

from moesaic import ExpertWeights, Problem, Quantized


@final
@dataclass(frozen=True)
class TritonKernelsMXFP4(Bundled):
    """Codes and scales are those of the weights; rows count as gate and up in turns."""

    name: str = "triton_kernels"
    tolerance: float | None = TOLERANCE
    bundle: ClassVar[Bundle] = TRITON_KERNELS
    activation: ClassVar[Activation] = staticmethod(clamped_swiglu)

    def bound(self, weights: ExpertWeights, problem: Problem) -> Bound:
        """Swizzled once, as vLLM does for GPT-OSS on Hopper: without split-k, groups padded to a multiple of 4."""
        TRITON_KERNELS.enter()
        from triton_kernels.matmul_ogs_details.opt_flags import update_opt_flags_constraints  # noqa: PLC0415

        update_opt_flags_constraints({"split_k": 1})
        (gate_up, first), (down, second) = _swizzled(weights.gate_up), _swizzled(weights.down)
        return layer(problem, gate_up, down, (first, second))


def _swizzled(stored: Quantized) -> tuple[Any, Any]:
    from triton_kernels.matmul_ogs import PrecisionConfig  # noqa: PLC0415
    from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor  # noqa: PLC0415
    from triton_kernels.tensor_details import layout as layouts  # noqa: PLC0415

    kind, options = layouts.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    codes = convert_layout(wrap_torch_tensor(stored.data.transpose(1, 2), dtype=FP4), kind, **options)
    groups = stored.scales["scale"].view(torch.uint8)
    groups = torch.nn.functional.pad(groups, (0, -groups.shape[-1] % 4)).transpose(1, 2)
    kind, options = layouts.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
    scales = convert_layout(wrap_torch_tensor(groups), kind, **options)
    return codes, PrecisionConfig(weight_scale=scales)
