"""examine: one experts module as a problem and a choice of backend, or why it is not one. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers.integrations.finegrained_fp8 import FP8Experts

from moesaic.activations import Activation
from moesaic.backends import Backend
from moesaic.errors import WeightsError
from moesaic.integrations.transformers.discovery import is_decorated
from moesaic.integrations.transformers.identify import identify
from moesaic.integrations.transformers.pointwise import FAULTS
from moesaic.integrations.transformers.report import Gap, GapCode
from moesaic.integrations.transformers.storage import NORM_WEIGHT, Storage
from moesaic.machine import Machine
from moesaic.output_norm import OutputNorm
from moesaic.problem import DTYPES, Problem
from moesaic.resolve import Resolution, resolve

TOP_K_NAMES: tuple[str, ...] = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
"""What configurations call the number of experts of a token; the first that is there counts."""


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


def examine(module: nn.Module, backends: Sequence[Backend[Any]]) -> Examined | Refused:
    """Describe `module` and choose its backend. All that can be decided before anything is changed is decided here."""
    if not is_decorated(module):
        text = f"{module.__class__.__name__} does not go through transformers' experts interface"
        return Refused((Gap(GapCode.INTERFACE, text),))
    if isinstance(module, FP8Experts):
        return Refused((Gap(GapCode.SCHEME, "FP8 experts are not served yet; load the model with dequantize=True"),))
    tensors = parameters(module)
    storage = declared_storage(module)
    gaps = (*_parameter_gaps(module, storage, tensors), *_placement_gaps(tensors))
    if gaps:
        return Refused(gaps)
    activation = _activation(module, storage, tensors["down_proj"].device)
    norm = _output_norm(module) if storage.normed else None
    gaps = tuple(found for found in (activation, norm) if isinstance(found, Gap))
    if isinstance(activation, Gap) or isinstance(norm, Gap):
        return Refused(gaps)
    return _resolved(module, storage, activation, norm, backends)


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """All parameters of `module` and of its children by name."""
    return dict(module.named_parameters(remove_duplicate=False))


def declared_storage(module: nn.Module) -> Storage:
    """How the module says that it stores its weights."""
    said: Mapping[str, Any] = vars(module)
    return Storage(
        gated=said["has_gate"],
        transposed=said["is_transposed"],
        interleaved=said["has_gate"] and not said["is_concatenated"],
        biased=said["has_bias"],
        normed=said.get("has_post_expert_norm", False),  # transformers 5.17 knows no norm
    )


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


def _activation(module: nn.Module, storage: Storage, device: torch.device) -> Activation | Gap:
    function = "_apply_gate" if storage.gated else "act_fn"
    found = identify(getattr(module, function), gated=storage.gated, device=device)
    kind = module.__class__.__name__
    if found is None:
        return Gap(GapCode.ACTIVATION, f"activation not recognised: {kind}.{function} is none of moesaic's")
    if found.interleaved != storage.interleaved:
        said, does = ("alternate", "halves") if storage.interleaved else ("halves", "alternate")
        text = f"{kind} stores gate and up columns as {said}, but {function} reads them as {does}"
        return Gap(GapCode.ACTIVATION, text)
    return found.activation


def _output_norm(module: nn.Module) -> OutputNorm | Gap:
    """The norm of expert outputs, accepted only if it agrees with OutputNorm on rows so small that eps counts."""
    norm = module.get_submodule("post_expert_norm")
    weight = norm.get_parameter("weight").detach()
    eps = vars(norm).get("eps", vars(norm).get("variance_epsilon"))
    text = f"norm not recognised: {norm.__class__.__name__} is not moesaic's OutputNorm"
    if not isinstance(eps, float):
        return Gap(GapCode.OUTPUT_NORM, f"{text}, and has no eps")
    found = OutputNorm(eps)
    rows = torch.randn(8, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight.device)
    rows = rows * torch.logspace(-4, 2, 8, device=weight.device).unsqueeze(-1)
    try:
        with torch.no_grad():
            got = norm(rows)
    except FAULTS as fault:
        return Gap(GapCode.OUTPUT_NORM, f"{text}: {fault}")
    if not torch.allclose(got.float(), found(rows, 1.0 + weight), rtol=1e-5, atol=1e-6):
        return Gap(GapCode.OUTPUT_NORM, text)
    return found


def _resolved(
    module: nn.Module,
    storage: Storage,
    activation: Activation,
    norm: OutputNorm | None,
    backends: Sequence[Backend[Any]],
) -> Examined | Refused:
    tensors = parameters(module)
    shapes = storage.canonical({name: tensor.detach().to("meta") for name, tensor in tensors.items()})
    num_experts, hidden_size, intermediate_size = shapes.down.shape
    problem = Problem(
        num_experts=num_experts,
        top_k=_top_k(vars(module)["config"], num_experts),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        activation=activation,
        dtype=tensors["down_proj"].dtype,
        bias=storage.biased,
        output_norm=norm,
    )
    try:
        shapes.check(problem)
    except WeightsError as fault:
        return Refused((Gap(GapCode.PARAMETERS, str(fault)),))
    resolution = resolve(problem, Machine.current(tensors["down_proj"].device), backends)
    if not resolution.eligible:
        declined = "; ".join(f"{v.backend.name} ({', '.join(map(str, v.reasons))})" for v in resolution.verdicts)
        return Refused((Gap(GapCode.BACKEND, declined or "no backends were given"),), resolution)
    return Examined(storage, resolution)


def _top_k(config: Any, num_experts: int) -> int:
    """Slots of a token: the configuration's number, the largest if it has one per layer, else all experts."""
    for name in TOP_K_NAMES:
        found = getattr(config, name, None)
        numbers = [n for n in (found if isinstance(found, list | tuple) else [found]) if isinstance(n, int) and n > 0]
        if numbers:
            return max(numbers)
    return num_experts
