"""Mutants of torch's settings: an answer that depends on one, and a call that leaves one changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends.capabilities import Capabilities
from moesaic.batches import TokenBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.controls import Honest, of_backend
from moesaic.conformance.mutants.steps import ONE_ACTIVATION, Steps
from moesaic.conformance.torch_state import FILLED
from moesaic.problem import Problem
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True)
class OutputInDefaultDtype(Steps):
    """The result is collected in a tensor of torch's default dtype."""

    name: ClassVar[str] = "F37_output_allocated_in_the_default_dtype"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        return torch.empty(total.shape, device=total.device).copy_(total).to(problem.dtype)


@final
@dataclass(frozen=True)
class SumOnDefaultDevice(Steps):
    """The sum is allocated where torch allocates by default, and not beside the rows."""

    name: ClassVar[str] = "F93_sum_on_the_default_device"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def zeros(self, rows: Tensor) -> Tensor:
        return torch.zeros(rows.shape, dtype=torch.float32)


@final
@dataclass(frozen=True)
class PreparedInDefaultDtype(Steps):
    """Prepare writes its weights into memory of torch's default dtype."""

    name: ClassVar[str] = "F37_weights_prepared_in_the_default_dtype"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        data = weights.down.data
        return replace(weights, down=Quantized(Plain(), torch.empty(data.shape, device=data.device).copy_(data)))


@final
@dataclass(frozen=True)
class FastInInferenceMode(Steps):
    """In inference mode the products are taken in bfloat16."""

    name: ClassVar[str] = "F70_coarse_products_in_inference_mode"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def product(self, rows: Tensor, matrix: Tensor) -> Tensor:
        return Steps.product(self, rows.bfloat16().float() if torch.is_inference_mode_enabled() else rows, matrix)


@final
@dataclass(frozen=True)
class WeightsThroughAutocast(Steps):
    """Prepare multiplies weights by one, which autocast rounds to bfloat16."""

    name: ClassVar[str] = "F37_weights_prepared_through_autocast"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        data = weights.gate_up.data
        one = torch.eye(data.shape[-1], dtype=data.dtype, device=data.device)
        same = torch.matmul(data.nan_to_num(), one).to(data.dtype)
        return replace(weights, gate_up=Quantized(Plain(), same.where(data.isfinite(), data)))


@final
@dataclass(frozen=True)
class ThreadsDecide(Steps):
    """Each thread takes half of the columns: with one thread the others stay zero."""

    name: ClassVar[str] = "F20_columns_of_a_second_thread_not_written"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        half = total.shape[-1] // 2 if torch.get_num_threads() == 2 else total.shape[-1]
        total[:, half:] = 0
        return total.to(problem.dtype)


@final
@dataclass(frozen=True)
class GradientsLeftDisabled(Steps):
    """Gradients are switched off for the call and not on again."""

    name: ClassVar[str] = "F93_gradients_left_disabled"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        torch.set_grad_enabled(False)
        return batch.routing.topk_ids


@final
@dataclass(frozen=True)
class RandomConsumed(Steps):
    """A random number is drawn from torch's generator, to no effect on the answer."""

    name: ClassVar[str] = "F93_random_numbers_consumed"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        torch.rand(1, device=batch.rows.device)
        return batch.routing.topk_ids


@final
@dataclass(frozen=True)
class ThreadsChanged(Steps):
    """Prepare sets torch's number of threads to one that suits it."""

    name: ClassVar[str] = "F93_number_of_threads_left_changed"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        torch.set_num_threads(3)
        return weights


@final
@dataclass(frozen=True)
class DefaultDtypeLeft(Steps):
    """Torch's default dtype is set for the call and not put back."""

    name: ClassVar[str] = "F93_default_dtype_left_changed"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def tokens(self, batch: TokenBatch, weights: ExpertWeights, problem: Problem) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return Steps.tokens(self, batch, weights, problem)


@final
@dataclass(frozen=True)
class DeterministicLeft(Steps):
    """Determinism is switched on for all of torch and left on."""

    name: ClassVar[str] = "F95_deterministic_algorithms_left_on"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        torch.use_deterministic_algorithms(problem.deterministic)
        return batch.routing.topk_ids


@final
@dataclass(frozen=True)
class FillLeftOff(Steps):
    """The filling of uninitialised memory is switched off for speed and left off."""

    name: ClassVar[str] = "F15_fill_of_uninitialised_memory_left_off"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def ids(self, batch: TokenBatch, problem: Problem) -> Tensor:
        FILLED.fill_uninitialized_memory = False
        return batch.routing.topk_ids


@final
@dataclass(frozen=True)
class AutocastLeft(Steps):
    """Autocast is entered and not left."""

    name: ClassVar[str] = "F93_autocast_left_on"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        torch.set_autocast_enabled("cpu", True)
        return total.to(problem.dtype)


@final
@dataclass(frozen=True)
class PrecisionLowered(Steps):
    """The precision of float32 products is lowered for the whole process."""

    name: ClassVar[str] = "F93_float32_precision_left_lowered"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        torch.set_float32_matmul_precision("high")
        return weights


@final
@dataclass(frozen=True)
class PrecisionFieldLowered(Steps):
    """The precision of one library's products is lowered by its own field, after which torch's word cannot be read."""

    name: ClassVar[str] = "F93_precision_of_one_library_left_lowered"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def prepare(self, weights: ExpertWeights, problem: Problem) -> ExpertWeights:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        return weights


@final
@dataclass(frozen=True)
class SubnormalsFlushed(Steps):
    """Subnormal numbers are flushed to zero from the call on."""

    name: ClassVar[str] = "F93_subnormals_left_flushed"
    capabilities: ClassVar[Capabilities] = ONE_ACTIVATION

    @override
    def rounded(self, total: Tensor, problem: Problem) -> Tensor:
        torch.set_flush_denormal(True)
        return total.to(problem.dtype)


MUTANTS: tuple[Mutant, ...] = tuple(
    of_backend(subject, "torch_settings", Honest())
    for subject in (
        OutputInDefaultDtype(),
        SumOnDefaultDevice(),
        PreparedInDefaultDtype(),
        FastInInferenceMode(),
        WeightsThroughAutocast(),
        ThreadsDecide(),
        GradientsLeftDisabled(),
        RandomConsumed(),
        ThreadsChanged(),
        DefaultDtypeLeft(),
        DeterministicLeft(),
        FillLeftOff(),
        AutocastLeft(),
        PrecisionLowered(),
        PrecisionFieldLowered(),
        SubnormalsFlushed(),
    )
)
