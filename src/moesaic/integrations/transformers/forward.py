"""The function that transformers calls for every experts module, and its registration."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn
from transformers.integrations.finegrained_fp8 import FP8ExpertsInterface
from transformers.integrations.moe import ExpertsInterface

from moesaic.backends import BACKENDS
from moesaic.batches import Routing, StandardBatch
from moesaic.errors import GradientError, PatchError
from moesaic.integrations.transformers.bound import attach
from moesaic.integrations.transformers.examine import Refused, examine
from moesaic.integrations.transformers.state import Bound, Unbound, implementation_of, packed_of, state_of

NAME = "moesaic"
"""The experts implementation's name in transformers."""

BINDING = threading.Lock()
"""Held while a module is bound by its first call."""


def register(name: str = NAME) -> None:
    """Make moesaic known to transformers: `from_pretrained(..., experts_implementation="moesaic")`.

    Each experts module is bound to a backend by its first call; `patch` does it at once and says what it covers.
    """
    # A name that is only in one of the two maps is accepted by transformers and fails in the first layer.
    ExpertsInterface.register(name, experts_forward)
    FP8ExpertsInterface.register(name, experts_forward)


def experts_forward(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Run one experts module; `hidden_states` [T, H], `top_k_index` and `top_k_weights` [T, K].

    Ids outside the experts, -1 and the number of experts among them, are inactive slots. Raises PatchError if the
    module is not bound and cannot be.
    """
    match state_of(module):
        case Unbound(forward):
            return forward(module, hidden_states, top_k_index, top_k_weights)
        case Bound() as bound:
            return _run(module, bound, hidden_states, _routing(top_k_index, top_k_weights))
        case None:
            return _run(module, _bind_first(module), hidden_states, _routing(top_k_index, top_k_weights))


def _routing(top_k_index: Tensor, top_k_weights: Tensor) -> Routing:
    return Routing(top_k_index, top_k_weights.to(torch.promote_types(top_k_weights.dtype, torch.float32)))


def _run(module: nn.Module, bound: Bound, hidden_states: Tensor, routing: Routing) -> Tensor:
    if torch.is_grad_enabled():
        wanted = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        if wanted or hidden_states.requires_grad:
            _check_gradients(module, bound, wanted)
    if torch.is_autocast_enabled(hidden_states.device.type):  # as transformers' own functions do
        rows = hidden_states.to(bound.experts.problem.dtype)
        return bound.experts(StandardBatch(rows, routing)).to(hidden_states.dtype)
    return bound.experts(StandardBatch(hidden_states, routing))


def _check_gradients(module: nn.Module, bound: Bound, wanted: list[str]) -> None:
    kind, backend = module.__class__.__name__, bound.experts.backend
    if packed_of(module) is not None:
        raise GradientError(
            f"{kind} computes with the packed weights of a quantized checkpoint, through which there are no gradients: "
            "call the model under torch.no_grad()"
        )
    if not backend.capabilities.differentiable:
        raise GradientError(
            f"{kind} runs on the backend {backend.name}, which computes no gradients: call the model under "
            "torch.no_grad(), or patch it with a differentiable backend, patch(model, backends=(TorchGrouped(),))"
        )
    lost = [name for name in wanted if name not in bound.trained]
    if lost:
        raise GradientError(
            f"{kind} would train without {', '.join(lost)}: the backend {backend.name} runs on a copy, or on weights "
            "that were frozen when they were given to it. Call the model under torch.no_grad(), or freeze them with "
            "requires_grad_(False)"
        )


@torch.compiler.disable(  # pyright: ignore[reportUntypedFunctionDecorator]
    reason="experts are bound before compiling: call patch(model), or the model once"
)
def _bind_first(module: nn.Module) -> Bound:
    with BINDING:  # two threads may make the first call
        state = state_of(module)
        return state if isinstance(state, Bound) else _bind(module)


def _bind(module: nn.Module) -> Bound:
    examined = examine(module, BACKENDS)
    if isinstance(examined, Refused):
        instead = 'choose another implementation with model.set_experts_implementation("grouped_mm")'
        if packed_of(module) is not None:
            instead = "load the checkpoint with from_pretrained, which makes plain weights of it"
        gaps = "; ".join(map(str, examined.gaps))
        raise PatchError(f"{module.__class__.__name__} cannot run through moesaic: {gaps}; {instead}")
    return attach(module, examined, implementation_of(module) or NAME)
