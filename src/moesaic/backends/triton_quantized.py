"""TritonQuantized: weights that stay in their format, in Triton kernels that read codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities, Reason, ReasonCode, Requires, Target
from moesaic.backends.expanded_products import expanded_bytes, expanded_tokens
from moesaic.backends.stored_products import in_place, stored_bytes, takes_codes, tokens
from moesaic.backends.stored_weights import StoredWeights
from moesaic.backends.triton_grouped import EXPRESSED
from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.layouts import BatchedExperts, GroupedContiguous, PaddedStandard, Standard
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.quant import SCHEMES, UNQUANTIZED, Plain
from moesaic.weights import ExpertWeights

HOPPER = (9, 0)


@final
@dataclass(frozen=True)
class TritonQuantized(Backend[StoredWeights]):
    """Quantized weights of any format that the kernels read, on CUDA; rows in a format are rounded to it first.

    `expand_rows`: mean rows of an expert from which, on Hopper, reading all weights back into the workspace and
    multiplying plain ones is faster than reading codes in each product.
    """

    expand_rows: int = 512

    name: ClassVar[str] = "triton_quantized"
    capabilities: ClassVar[Capabilities] = Capabilities(
        targets=(Target("cuda", min_capability=80),),
        features=(),
        requires=(Requires("triton", (3, 6)),),
        dtypes=(torch.bfloat16, torch.float16),
        schemes=tuple(scheme for scheme in SCHEMES if scheme != UNQUANTIZED),
        any_scheme=True,
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
        row_bytes=16,
        max_experts=1024,
        max_top_k=2**31 - 1,
    )

    @override
    def further_reasons(self, problem: Problem, machine: Machine) -> tuple[Reason, ...]:
        from moesaic.backends.format_forms import rounded_form, stored_form  # noqa: PLC0415

        scheme = problem.scheme
        read = stored_form(scheme.weights) is not None
        rounded = isinstance(scheme.inputs, Plain) or rounded_form(scheme.inputs) is not None
        if read and rounded:
            return ()
        return (Reason(ReasonCode.SCHEME, "weights and inputs in formats that the kernels read", repr(scheme)),)

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> StoredWeights:
        return StoredWeights.of(weights, problem)

    @override
    def canonical(self, prepared: StoredWeights, problem: Problem) -> ExpertWeights:
        return prepared.canonical()

    @override
    def tensors(self, prepared: StoredWeights) -> tuple[Tensor, ...]:
        return prepared.tensors

    @override
    @torch.no_grad()
    def run(self, batch: Batch, prepared: StoredWeights, problem: Problem) -> Tensor:
        rows = batch.rows
        if rows.numel() == 0:
            return torch.empty_like(rows, memory_format=torch.contiguous_format)
        with torch.cuda.device(rows.device):  # triton launches on the current device, whatever its arguments lie on
            if isinstance(batch, GroupedBatch | BatchedBatch):
                return in_place(batch, prepared, problem)
            if self._expands(problem, batch.routing.topk_ids.numel()) and _multiplies(rows, prepared):
                return expanded_tokens(rows, batch.routing, prepared, problem)
            return tokens(rows, batch.routing, prepared, problem)

    def _expands(self, problem: Problem, num_pairs: int) -> bool:
        return num_pairs > 0 and num_pairs >= self.expand_rows * problem.num_experts

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        routed = problem.layout.has_routing
        expands = routed and self._expands(problem, num_rows * problem.top_k)
        own = stored_bytes(problem, num_rows)  # of another architecture, or of fewer rows
        return max(own, expanded_bytes(problem, num_rows)) if expands else own


def _multiplies(rows: Tensor, prepared: StoredWeights) -> bool:
    """Whether the products of plain weights exist here, and gain: codes that meet codes with one scale lose nothing."""
    if torch.cuda.get_device_capability(rows.device) != HOPPER:
        return False
    return not takes_codes(prepared, rows.device) or prepared.gate_up.stored.form.tile_columns > 0
