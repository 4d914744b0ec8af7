"""One expert's stored projection on a CPU, read back into the layer's dtype at each call: any format, any dtype."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.quant import Quantized


@dataclass(frozen=True, eq=False)
class StoredProjection(ABC):
    """`rows @ weight.T` with a weight `[N, K]` that stays in its format. To add one, copy `cpu_int8.py`."""

    @abstractmethod
    def __call__(self, rows: Tensor) -> Tensor:
        """Rows `[M, K]` projected, `[M, N]`, in their own dtype."""

    @abstractmethod
    def stored(self) -> Quantized:
        """The weight as it came, bit for bit."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor held."""


@final
@dataclass(frozen=True, eq=False)
class DequantizedProjection(StoredProjection):
    """The stored weight is read back whole, then multiplied: fewer bytes kept, more time than a plain one."""

    weight: Quantized

    @override
    def __call__(self, rows: Tensor) -> Tensor:
        return functional.linear(rows, self.weight.dequantize(rows.dtype))

    @override
    def stored(self) -> Quantized:
        return self.weight

    @property
    @override
    def tensors(self) -> tuple[Tensor, ...]:
        return self.weight.tensors


def is_vectorized() -> bool:
    """Whether torch's kernels of few bits are more than loops here."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")
