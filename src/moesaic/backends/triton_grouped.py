"""TritonGrouped: plain Triton, every layout, every CUDA device from sm_80 on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.activations import (
    GELU,
    GeGLU,
    Identity,
    PowLU,
    ReGLU,
    ReLU,
    ReLU2,
    SiLU,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.backends.by_size import compute_rows, compute_tokens
from moesaic.backends.capabilities import Accepts, Capabilities, Requires, Target
from moesaic.backends.chosen_weights import ChosenWeights
from moesaic.backends.device_weights import ROW_BYTES
from moesaic.backends.on_device import on_device
from moesaic.backends.triton_streamed import streamed_bytes
from moesaic.backends.tunable import Tunable
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import Problem
from moesaic.quant import UNQUANTIZED
from moesaic.tuning.choices import Choice, Streamed, Vector

EXPRESSED: tuple[Accepts, ...] = (
    Accepts(SwiGLU, per_expert=("alpha", "beta", "limit")),
    Accepts(SwiGLUStep, per_expert=("limit",)),
    Accepts(SiTU, per_expert=("gate_scale", "linear_scale", "limit")),
    Accepts(GeGLU, scalar=("approximate",)),
    Accepts(ReGLU),
    Accepts(PowLU, per_expert=("exponent", "limit")),
    Accepts(ReLU2, per_expert=("limit",)),
    Accepts(ReLU),
    Accepts(GELU, scalar=("approximate",)),
    Accepts(SiLU),
    Accepts(Identity),
)
"""The activations with a Triton expression, `kernels/activation_expressions.py`."""


@final
@dataclass(frozen=True)
class TritonGrouped(Tunable):
    """Both products in one launch of plain Triton; the canonical weights are used as they are."""

    name: ClassVar[str] = "triton_grouped"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cuda", min_capability=80),),
        features=(),
        requires=(Requires("triton", (3, 6)),),
        dtypes=(torch.bfloat16, torch.float16),
        schemes=(UNQUANTIZED,),
        any_scheme=False,
        layouts=(Standard(), PaddedStandard(), GroupedContiguous(), BatchedExperts()),
        activations=EXPRESSED,
        any_activation=False,
        bias=True,
        output_norm=False,
        weight_on_input=True,
        inactive_slots=True,
        duplicate_ids=True,
        deterministic=True,
        graph_capture=True,
        differentiable=False,
        row_bytes=ROW_BYTES,
        max_experts=1024,
        max_top_k=2**31 - 1,
    )
    forms: ClassVar[tuple[type[Choice], ...]] = (Vector, Streamed)

    @override
    @on_device
    def run(self, batch: Batch, prepared: ChosenWeights, problem: Problem) -> Tensor:
        rows = batch.rows
        if rows.numel() == 0:
            return torch.empty_like(rows, memory_format=torch.contiguous_format)
        if isinstance(batch, GroupedBatch | BatchedBatch):
            return compute_rows(batch, prepared, problem)
        return compute_tokens(rows, batch.routing, prepared, problem)

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        return streamed_bytes(problem, num_rows)
