"""HopperGrouped: the streamed kernels for few rows, a warp-specialized grouped product in Gluon for many, on sm_90."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities, Requires, Target
from moesaic.backends.device_weights import ROW_BYTES, DeviceWeights
from moesaic.backends.hopper_products import ALIGNMENT, product_bytes, product_rows, product_tokens
from moesaic.backends.triton_grouped import EXPRESSED
from moesaic.backends.triton_streamed import few_rows, few_tokens, streamed_bytes
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, Routing
from moesaic.errors import BatchError
from moesaic.layouts import GroupedContiguous, PaddedStandard, Standard
from moesaic.problem import Problem
from moesaic.quant import UNQUANTIZED
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class HopperGrouped(Backend[DeviceWeights]):
    """The fastest form for every size on an H100 or H200; the canonical weights are used as they are.

    `product_rows`: mean rows of an expert from which the two grouped products are faster than streaming the weights.
    """

    product_rows: int = 64

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

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> DeviceWeights:
        return DeviceWeights.of(weights, problem)

    @override
    def canonical(self, prepared: DeviceWeights, problem: Problem) -> ExpertWeights:
        return prepared.weights

    @override
    def tensors(self, prepared: DeviceWeights) -> tuple[Tensor, ...]:
        return prepared.tensors

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: DeviceWeights, problem: Problem) -> Tensor:
        rows = batch.rows
        if rows.numel() == 0:
            return torch.empty_like(rows, memory_format=torch.contiguous_format)
        if isinstance(batch, BatchedBatch):
            raise BatchError(f"{self.name} takes no BatchedExperts: bind a problem with that layout")
        with torch.cuda.device(rows.device):  # triton launches on the current device, whatever its arguments lie on
            if isinstance(batch, GroupedBatch):
                return self._rows(batch, prepared, problem)
            return self._tokens(rows, batch.routing, prepared, problem)

    def _rows(self, batch: GroupedBatch, prepared: DeviceWeights, problem: Problem) -> Tensor:
        num_rows = batch.rows.shape[0]
        if self._multiplies(problem, num_rows):
            return product_rows(batch, prepared, problem)
        return few_rows(batch, prepared, problem)

    def _tokens(self, rows: Tensor, routing: Routing, prepared: DeviceWeights, problem: Problem) -> Tensor:
        num_pairs = routing.topk_ids.numel()
        if num_pairs and self._multiplies(problem, num_pairs):
            return product_tokens(rows, routing, prepared, problem)
        return few_tokens(rows, routing, prepared, problem)

    def _multiplies(self, problem: Problem, num_rows: int) -> bool:
        return num_rows >= self.product_rows * problem.num_experts

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        pairs = num_rows * problem.top_k
        return streamed_bytes(problem, num_rows) + product_bytes(problem, pairs, self.product_rows)
