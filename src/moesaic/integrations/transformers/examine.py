"""examine: one experts module as a problem and a choice of backend, or why it is not one. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers.integrations.finegrained_fp8 import FP8Experts

from moesaic.backends import Backend
from moesaic.errors import WeightsError
from moesaic.integrations.transformers.discovery import is_decorated
from moesaic.integrations.transformers.recognise import activation_of, output_norm_of, top_k_of
from moesaic.integrations.transformers.report import Gap, GapCode
from moesaic.integrations.transformers.state import packed_of, packed_weights
from moesaic.integrations.transformers.storage import NORM_WEIGHT, Storage, declared_storage, parameters
from moesaic.machine import Machine
from moesaic.problem import DTYPES, Problem
from moesaic.quant import UNQUANTIZED, Plain, Scheme
from moesaic.resolve import Resolution, resolve
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True, eq=False)
class Examined:
    """A module that can be bound: how it stores its weights, and which backend takes them."""

    storage: Storage
    resolution: Resolution


@final
@dataclass(frozen=True)
class Refused:
    """A module that cannot be bound: why, and the choice of backend if it came to that."""

    gaps: tuple[Gap, ...]
    resolution: Resolution | None = None


def examine(
    module: nn.Module, backends: Sequence[Backend[Any]], *, quantize_inputs: bool = False
) -> Examined | Refused:
    """Describe `module` and choose its backend. All that can be decided before anything is changed is decided here.

    `quantize_inputs`: rows are rounded to the format in which the makers of a quantized checkpoint serve it.
    """
    if not is_decorated(module):
        text = f"{module.__class__.__name__} does not go through transformers' experts interface"
        return Refused((Gap(GapCode.INTERFACE, text),))
    if isinstance(module, FP8Experts):
        text = (
            "FP8 experts as transformers loads them are not served: load the checkpoint with "
            "moesaic.integrations.transformers.load, which keeps them in FP8, or with dequantize=True"
        )
        return Refused((Gap(GapCode.SCHEME, text),))
    packed, weights = packed_of(module), packed_weights(module)
    if packed is not None and weights is not None:
        scheme = packed.served if quantize_inputs else Scheme(packed.served.weights, Plain())
        return _examined(module, weights, scheme, packed.dtype, packed.device, backends)
    storage, tensors = declared_storage(module), parameters(module)
    gaps = (*_parameter_gaps(module, storage, tensors), *_placement_gaps(tensors))
    if gaps:
        return Refused(gaps)
    shapes = storage.canonical({name: tensor.detach().to("meta") for name, tensor in tensors.items()})
    down = tensors["down_proj"]
    return _examined(module, shapes, UNQUANTIZED, down.dtype, down.device, backends)


def _parameter_gaps(module: nn.Module, storage: Storage, tensors: Mapping[str, Tensor]) -> Iterator[Gap]:
    wanted = {*storage.names, *((NORM_WEIGHT,) if storage.normed else ())}
    if set(tensors) != wanted:
        text = f"{module.__class__.__name__} holds the parameters {sorted(tensors)}, but {sorted(wanted)} are known"
        yield Gap(GapCode.PARAMETERS, text)
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        yield Gap(GapCode.PARAMETERS, f"{module.__class__.__name__} holds the buffers {buffers}, which are not known")
    for name in storage.names[:2]:
        if name in tensors and tensors[name].ndim != 3:
            yield Gap(GapCode.PARAMETERS, f"{name} is {tuple(tensors[name].shape)}, but it needs three dimensions")


def _placement_gaps(tensors: Mapping[str, Tensor]) -> Iterator[Gap]:
    dtypes = {str(t.dtype) for t in tensors.values() if t.dtype not in DTYPES}
    if dtypes:
        yield Gap(GapCode.SCHEME, f"weights stored as {', '.join(sorted(dtypes))} are not served yet")
    devices = {str(t.device) for t in tensors.values()}
    if len(devices) > 1 or "meta" in devices:
        text = f"the weights are on {', '.join(sorted(devices))}, but all have to lie on one device, not offloaded"
        yield Gap(GapCode.PLACEMENT, text)
    wrapped = {t.__class__.__name__ for t in tensors.values() if is_traceable_wrapper_subclass(t)}
    if wrapped:
        yield Gap(GapCode.PLACEMENT, f"weights held in {', '.join(sorted(wrapped))} are not served yet")


def _examined(
    module: nn.Module,
    weights: ExpertWeights,
    scheme: Scheme,
    dtype: torch.dtype,
    device: torch.device,
    backends: Sequence[Backend[Any]],
) -> Examined | Refused:
    storage = declared_storage(module)
    activation = activation_of(module, storage, device)
    norm = output_norm_of(module) if storage.normed else None
    gaps = tuple(found for found in (activation, norm) if isinstance(found, Gap))
    if isinstance(activation, Gap) or isinstance(norm, Gap):
        return Refused(gaps)
    num_experts, hidden_size, intermediate_size = weights.down.shape
    problem = Problem(
        num_experts=num_experts,
        top_k=top_k_of(vars(module)["config"], num_experts),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        activation=activation,
        dtype=dtype,
        scheme=scheme,
        bias=storage.biased,
        output_norm=norm,
    )
    try:
        weights.check(problem)
    except WeightsError as fault:
        return Refused((Gap(GapCode.PARAMETERS, str(fault)),))
    resolution = resolve(problem, Machine.current(device), backends)
    if not resolution.eligible:
        declined = "; ".join(f"{v.backend.name} ({', '.join(map(str, v.reasons))})" for v in resolution.verdicts)
        return Refused((Gap(GapCode.BACKEND, declined or "no backends were given"),), resolution)
    return Examined(storage, resolution)
