"""CpuQuantized: weights that stay in their format, on a CPU.

INT4 in groups of 32 to 256 and INT8 per row run on torch's own kernels where few rows meet an expert, in bfloat16 and
where the sizes fit (`cpu_int4.py`, `cpu_int8.py`); every other format, dtype and size is read back expert by expert at
each call (`cpu_dequantized.py`), which saves memory and no time. Inputs that have a format are rounded to it and read
back, and all that follows is in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities, Target
from moesaic.backends.cpu import ACTIVATIONS
from moesaic.backends.cpu_batch import run_batch
from moesaic.batches import Batch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import DTYPES, Problem
from moesaic.quant import SCHEMES, UNQUANTIZED, Plain
from moesaic.weights import ExpertWeights

if TYPE_CHECKING:
    from moesaic.backends.cpu_stored import CpuStored


@final
@dataclass(frozen=True)
class CpuQuantized(Backend["CpuStored"]):
    """Quantized weights of any format on a CPU. Needs no alignment; computes no gradients."""

    name: ClassVar[str] = "cpu_quantized"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"),),
        features=(),
        requires=(),
        dtypes=DTYPES,
        schemes=tuple(scheme for scheme in SCHEMES if scheme != UNQUANTIZED),
        any_scheme=True,
        layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
        activations=ACTIVATIONS,
        any_activation=False,
        bias=True,
        output_norm=True,
        weight_on_input=True,
        inactive_slots=True,
        duplicate_ids=True,
        deterministic=True,
        graph_capture=False,
        differentiable=False,
        row_bytes=1,
        max_experts=2**31 - 1,
        max_top_k=2**31 - 1,
    )

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> CpuStored:
        from moesaic.backends.cpu_stored import CpuStored  # noqa: PLC0415 - importing moesaic stays quick

        return CpuStored.of(weights, problem)

    @override
    def canonical(self, prepared: CpuStored, problem: Problem) -> ExpertWeights:
        return prepared.canonical()

    @override
    def tensors(self, prepared: CpuStored) -> tuple[Tensor, ...]:
        return prepared.tensors

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: CpuStored, problem: Problem) -> Tensor:
        return run_batch(batch, problem, partial(prepared.compute, problem=problem))

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        # Every row at every stage, in the dtype and in float32, the activation's and the input format's copies, and
        # one expert's weights: codes, scales at every value, products; of plain ones what a product packs.
        plain_weights, plain_inputs = (isinstance(f, Plain) for f in (problem.scheme.weights, problem.scheme.inputs))
        largest = problem.hidden_size * max(problem.width, problem.intermediate_size) * problem.dtype.itemsize
        wide = max(4, problem.dtype.itemsize)
        slots = num_rows * problem.top_k if problem.layout.has_routing else num_rows
        columns = 5 * problem.hidden_size + 3 * problem.width + 9 * problem.intermediate_size
        columns += 0 if plain_inputs else 8 * max(problem.hidden_size, problem.intermediate_size)
        elements = slots * columns + 3 * num_rows * problem.hidden_size
        converted = (0 if plain_inputs else 1) if plain_weights else 6
        elements += converted * problem.num_weights
        return (largest if plain_weights else 0) + wide * elements + (slots + num_rows) * 120 + 4096
