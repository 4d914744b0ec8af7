"""TritonQuantized: weights that stay in their format, in Triton kernels that read codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.base import Backend
from moesaic.backends.capabilities import Capabilities, Reason, ReasonCode, Requires, Target
from moesaic.backends.coded_products import coded_bytes, coded_rows, coded_tokens, multiplies_codes
from moesaic.backends.expanded_products import expanded_bytes, expanded_tokens
from moesaic.backends.hopper_products import ALIGNMENT
from moesaic.backends.launch_faults import naming_launches
from moesaic.backends.nibble_products import multiplies_nibbles, nibble_bytes, nibble_rows, nibble_tokens
from moesaic.backends.on_device import on_device
from moesaic.backends.split_products import ALIGNMENT as PIECE
from moesaic.backends.split_products import multiplies_split, split_bytes, split_grouped, split_tokens
from moesaic.backends.stored_products import in_place, stored_bytes, takes_codes, tokens
from moesaic.backends.stored_weights import StoredWeights
from moesaic.backends.triton_grouped import EXPRESSED
from moesaic.backends.when_products import gains_read_back, least_rows
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, PaddedStandardBatch, StandardBatch
from moesaic.checks import whole_number
from moesaic.errors import TuningError
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

    Mean rows of an expert from which, on Hopper, other products are faster than those of Triton: `coded_rows`, grouped
    products of FP8 codes on both sides, or of codes of 4 bits beside bfloat16, None for what was measured of the format
    (docs/performance/quantized.md); `wide_rows`, those of 4 bits in tiles of 128 rows instead of 32; `expand_rows`, of
    other formats, and of NVFP4, all weights read back into the workspace and multiplied as plain ones. Below a mean of
    `split_rows`, rows that meet MXFP4 or INT4 are split in two FP8 numbers each, exact to 2^-17 of the largest of 64.
    """

    coded_rows: int | None = None
    expand_rows: int = 512
    wide_rows: int = 33
    split_rows: int = 12

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

    def __post_init__(self) -> None:
        for name in ("coded_rows", "expand_rows", "wide_rows", "split_rows"):
            given = getattr(self, name)
            if given is not None or name != "coded_rows":
                rows = whole_number("TritonQuantized", name, given, TuningError, at_least=0)
                object.__setattr__(self, name, rows)

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
    @naming_launches
    @on_device
    def run(self, batch: Batch, prepared: StoredWeights, problem: Problem) -> Tensor:
        rows = batch.rows
        if rows.numel() == 0:
            return torch.empty_like(rows, memory_format=torch.contiguous_format)
        if isinstance(batch, BatchedBatch):
            return in_place(batch, prepared, problem)
        if isinstance(batch, GroupedBatch):
            return self._rows_by(batch, problem)(batch, prepared, problem)
        return self._tokens_by(batch, prepared, problem)(rows, batch.routing, prepared, problem)

    def _rows_by(self, batch: GroupedBatch, problem: Problem) -> Callable[..., Tensor]:
        num_rows = batch.rows.shape[0]
        if _on_hopper(batch.rows) and self._many(problem, num_rows):
            # Whole pieces of 8 or 32 rows are stored: what lies behind an expert's rows has to be nobody's.
            if self._splits(problem, num_rows) and batch.alignment % PIECE == 0:
                return split_grouped
            if batch.alignment % ALIGNMENT == 0 and multiplies_codes(problem):
                return coded_rows
            if batch.alignment % ALIGNMENT == 0 and multiplies_nibbles(problem):
                return partial(nibble_rows, tile_rows=self._tile_rows(problem, num_rows))
        return in_place

    def _tokens_by(
        self, batch: StandardBatch | PaddedStandardBatch, prepared: StoredWeights, problem: Problem
    ) -> Callable[..., Tensor]:
        num_pairs = batch.routing.topk_ids.numel()
        if not _on_hopper(batch.rows):
            return tokens
        if self._many(problem, num_pairs):
            if multiplies_codes(problem):
                return coded_tokens
            if self._splits(problem, num_pairs):
                return split_tokens
            if multiplies_nibbles(problem) and not (self._expands(problem, num_pairs) and gains_read_back(problem)):
                return partial(nibble_tokens, tile_rows=self._tile_rows(problem, num_pairs))
        return expanded_tokens if self._expands(problem, num_pairs) and _gains(batch.rows, prepared) else tokens

    def _many(self, problem: Problem, num_pairs: int) -> bool:
        least = least_rows(problem) if self.coded_rows is None else self.coded_rows
        return num_pairs > 0 and num_pairs >= least * problem.num_experts

    def _splits(self, problem: Problem, num_pairs: int) -> bool:
        return multiplies_split(problem) and num_pairs < self.split_rows * problem.num_experts

    def _tile_rows(self, problem: Problem, num_pairs: int) -> int:
        return 128 if num_pairs >= self.wide_rows * problem.num_experts else 32

    def _expands(self, problem: Problem, num_pairs: int) -> bool:
        return num_pairs > 0 and num_pairs >= self.expand_rows * problem.num_experts

    @override
    def workspace(self, problem: Problem, num_rows: int) -> int:
        routed = problem.layout.has_routing
        pairs = num_rows * problem.top_k if routed else num_rows
        most = stored_bytes(problem, num_rows)  # of another architecture, or of fewer rows
        if self._many(problem, pairs):
            if multiplies_codes(problem):
                return max(most, coded_bytes(problem, num_rows))
            if multiplies_nibbles(problem):
                products = split_bytes if self._splits(problem, pairs) else nibble_bytes
                most = max(most, products(problem, num_rows))
                if not gains_read_back(problem):
                    return most
        return max(most, expanded_bytes(problem, num_rows)) if routed and self._expands(problem, pairs) else most


def _on_hopper(rows: Tensor) -> bool:
    return torch.cuda.get_device_capability(rows.device) == HOPPER


def _gains(rows: Tensor, prepared: StoredWeights) -> bool:
    """Whether plain weights gain: codes that meet codes with one scale lose nothing."""
    return not takes_codes(prepared, rows.device) or prepared.gate_up.stored.form.tile_columns > 0
