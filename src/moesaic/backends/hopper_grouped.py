"""HopperGrouped: the streamed kernels for few rows, a warp-specialized grouped product in Gluon for many, on sm_90."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.by_size import compute_rows, compute_tokens
from moesaic.backends.capabilities import Capabilities, Requires, Target
from moesaic.backends.chosen_weights import ChosenWeights
from moesaic.backends.device_weights import ROW_BYTES
from moesaic.backends.hopper_products import ALIGNMENT, product_bytes
from moesaic.backends.on_device import on_device
from moesaic.backends.triton_grouped import EXPRESSED
from moesaic.backends.triton_streamed import streamed_bytes
from moesaic.backends.tunable import Tunable
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.errors import BatchError
from moesaic.layouts import GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import Problem
from moesaic.quant import UNQUANTIZED
from moesaic.tuning.choices import Choice, Product, Streamed, Vector


@final
@dataclass(frozen=True)
class HopperGrouped(Tunable):
    """The fastest form for every size on an H100 or H200; the canonical weights are used as they are."""

    name: ClassVar[str] = "hopper_grouped"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cuda", min_capability=90, max_capability=90),),
        features=(),
        requires=(Requires("triton", (3, 6)),),
        dtypes=(torch.bfloat16, torch.float16),
        schemes=(UNQUANTIZED,),
        any_scheme=False,
        layouts=(Standard(), PaddedStandard(), GroupedContiguous(ALIGNMENT)),
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
    forms: ClassVar[tuple[type[Choice], ...]] = (Vector, Streamed, Product)

    @override
    @on_device
    def run(self, batch: Batch, prepared: ChosenWeights, problem: Problem) -> Tensor:
        rows = batch.rows
        if rows.numel() == 0:
            return torch.empty_like(rows, memory_format=torch.contiguous_format)
        if isinstance(batch, BatchedBatch):
            raise BatchError(f"{self.name} takes no BatchedExperts: bind a problem with that layout")
        if isinstance(batch, GroupedBatch):
            return compute_rows(batch, prepared, problem)
        return compute_tokens(rows, batch.routing, prepared, problem)

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        padding = self.choosing.padding(problem)
        streamed = streamed_bytes(problem, num_rows)
        return streamed if padding is None else streamed + product_bytes(problem, num_rows * problem.top_k, padding)
