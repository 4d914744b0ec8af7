"""One expert's projection on a CPU: packed once for oneDNN where oneDNN computes in its dtype, else as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional


@final
@dataclass(frozen=True, eq=False)
class Projection:
    """`rows @ weight.T + bias`. A packed weight is a blocked copy that saves oneDNN the reordering in every call."""

    weight: Tensor
    bias: Tensor | None
    packed: bool

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Projection:
        """Pack `weight` if this CPU has kernels for its dtype (bfloat16 from AVX512, float16 from AVX512-FP16)."""
        # oneDNN reads a bias as if its elements lay side by side, whatever its stride says (torch 2.13).
        typed = None if bias is None else bias.detach().to(weight.dtype).contiguous()
        if not packs(weight.dtype):
            return cls(weight.detach(), typed, packed=False)
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None), typed, packed=True)  # noqa: SLF001

    def __call__(self, rows: Tensor) -> Tensor:
        """The projected rows, in their own dtype."""
        if not self.packed:
            return functional.linear(rows, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")  # noqa: SLF001

    def dense(self) -> Tensor:
        """The weight as it came, bit for bit."""
        return self.weight.to_dense() if self.packed else self.weight


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for `dtype` here; float32 stays with the BLAS that torch was built with."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return dtype == torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001
