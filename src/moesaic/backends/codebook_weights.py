"""The form in which `CpuJitQuantized` keeps a layer's weights, and how it computes with them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from moesaic.backends.cpu_activation import activate
from moesaic.backends.cpu_codebook import CodebookProjection
from moesaic.backends.cpu_few import expert_ids
from moesaic.kernels.parallel_loop import as_many_threads_as_torch, is_usable
from moesaic.problem import Problem
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True, eq=False)
class CodebookWeights:
    """Both projections of every expert in blocks, biases as they came."""

    gate_up: CodebookProjection
    down: CodebookProjection
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    output_scale: Tensor | None
    process: int | None
    """The one that prepared, None where Numba is of no use: Numba ends a forked child that uses its threads."""

    @classmethod
    def of(cls, weights: ExpertWeights) -> CodebookWeights:
        """Put `weights` in blocks and compile the kernel of their format (2 s the first time in a process)."""
        prepared = cls(
            CodebookProjection.of(weights.gate_up, weights.gate_up_bias),
            CodebookProjection.of(weights.down, weights.down_bias),
            weights.gate_up_bias,
            weights.down_bias,
            weights.output_scale,
            process=os.getpid() if is_usable() else None,
        )
        compiled = prepared.process is not None
        with _threads(compiled=compiled):
            no_rows = torch.empty(0, prepared.gate_up.shape[1], dtype=torch.bfloat16, device="cpu")
            prepared.gate_up([], [], no_rows, compiled=compiled)
        return prepared

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor held."""
        optional = (self.gate_up_bias, self.down_bias, self.output_scale)
        return (*self.gate_up.tensors, *self.down.tensors, *(tensor for tensor in optional if tensor is not None))

    def canonical(self) -> ExpertWeights:
        """The weights that came, bit for bit."""
        optional = (self.gate_up_bias, self.down_bias, self.output_scale)
        return ExpertWeights(self.gate_up.stored(), self.down.stored(), *optional)

    def compute(self, experts: list[int], counts: list[int], rows: Tensor, problem: Problem) -> Tensor:
        """Rows `[S, H]`, expert by expert, to their unweighted results, in float32."""
        compiled = self.process == os.getpid()
        with _threads(compiled=compiled):
            first = self.gate_up(experts, counts, rows, compiled=compiled)
            inner = torch.empty(rows.shape[0], problem.intermediate_size, dtype=torch.bfloat16, device="cpu")
            ids = expert_ids(experts, counts) if problem.activation.per_expert() else None
            activate(problem.activation, first, ids, wide=None, out=inner)
            second = self.down(experts, counts, inner, compiled=compiled)
        if problem.output_norm is None or self.output_scale is None:
            return second
        return problem.output_norm(second, self.output_scale)


def _threads(*, compiled: bool) -> AbstractContextManager[None]:
    """Numba on as many threads as torch, for both products; nothing to do without it."""
    return as_many_threads_as_torch() if compiled else nullcontext()
