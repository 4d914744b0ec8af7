"""CpuJitQuantized: weights of 4 bits on a CPU, in a compiled kernel that looks codes up as it multiplies.

`CpuQuantized` starts torch's kernel once for each expert, and reads FP4 back at each call. Here all experts share one
parallel loop, two loops a layer, and a weight costs half a byte of memory (`kernels/codebook_block.py`). Inputs of both
products are rounded to bfloat16, all else is float32. Prediction and measurements: docs/performance/cpu.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities, Reason, ReasonCode, Requires, Target
from moesaic.backends.cpu import ACTIVATIONS
from moesaic.backends.cpu_batch import run_batch
from moesaic.batches import Batch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.quant import INT4, MXFP4, NVFP4, PerGroup, Plain, Scheme
from moesaic.weights import ExpertWeights

if TYPE_CHECKING:
    from moesaic.backends.codebook_weights import CodebookWeights


@final
@dataclass(frozen=True)
class CpuJitQuantized(Backend["CodebookWeights"]):
    """A kernel that Numba compiles when weights are bound (2 s for each format in each process)."""

    name: ClassVar[str] = "cpu_jit_quantized"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cpu"),),
        features=("avx512_bf16",),
        requires=(Requires("numba", (0, 62)),),
        dtypes=(torch.bfloat16,),
        schemes=(
            *(
                Scheme(INT4(PerGroup(columns), zero_point=zero_point), Plain())
                for zero_point in (False, True)
                for columns in (32, 64, 128)
            ),
            Scheme(MXFP4(), Plain()),
            Scheme(NVFP4(), Plain()),
        ),
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
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        from moesaic.backends.cpu_codebook import codebook_form  # noqa: PLC0415

        scheme = problem.scheme
        if isinstance(scheme.inputs, Plain) and codebook_form(scheme.weights) is not None:
            return ()
        wanted = "weights in INT4 with an even number of columns to a group, MXFP4 or NVFP4, and inputs as they are"
        return (Reason(ReasonCode.SCHEME, wanted, repr(scheme)),)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> CodebookWeights:
        from moesaic.backends.codebook_weights import CodebookWeights  # noqa: PLC0415

        return CodebookWeights.of(weights)

    @override
    def canonical(self, prepared: CodebookWeights, problem: Problem) -> ExpertWeights:
        return prepared.canonical()

    @override
    def tensors(self, prepared: CodebookWeights) -> tuple[Tensor, ...]:
        return prepared.tensors

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: CodebookWeights, problem: Problem) -> Tensor:
        return run_batch(batch, problem, partial(prepared.compute, problem=problem))

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        from moesaic.backends.cpu_codebook import MANY_ROWS  # noqa: PLC0415

        # Rows and inner rows in bfloat16; both products in float32, columns filled up to blocks of 64, the generic
        # activation's eight copies, the norm's; the sum and the output. Above MANY_ROWS one expert's weight, read
        # back in float32 on the way, and its product.
        slots = num_rows * problem.top_k if problem.layout.has_routing else num_rows
        hidden, width, inner = problem.hidden_size, problem.width, problem.intermediate_size
        columns = 4 * hidden + 2 * inner + 4 * (4 * hidden + width + 8 * inner + 128)
        needed = slots * columns + num_rows * hidden * 6 + (slots + num_rows) * 120 + 4096
        if slots > MANY_ROWS:
            needed += 24 * hidden * max(width, inner) + 2 * slots * max(hidden, width)
        return needed
