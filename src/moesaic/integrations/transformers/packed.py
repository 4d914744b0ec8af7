"""Experts modules whose weights stay in the format of a checkpoint: packed when it is loaded, unpacked on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from moesaic.errors import PatchError
from moesaic.integrations.transformers.forward import NAME, experts_forward
from moesaic.integrations.transformers.guards import guard_module, unguard_module
from moesaic.integrations.transformers.state import (
    PACKED,
    WEIGHTS,
    Bound,
    Packed,
    implementation_of,
    packed_of,
    state_of,
)
from moesaic.integrations.transformers.storage import declared_storage
from moesaic.quant import Scheme
from moesaic.weights import ExpertWeights


def take_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Take the weights and biases away from `module`, so that nothing loads, allocates or initializes them.

    Empty tensors on the meta device stand in their place, where blocks around it look for them; `pack` wants them.
    """
    taken: dict[str, Tensor] = {}
    for name in declared_storage(module).names:
        taken[name] = torch.empty_like(module.get_parameter(name).detach(), device="meta")
        delattr(module, name)
        setattr(module, name, taken[name])  # an attribute like any other: in no list of parameters
    return taken


def pack(module: nn.Module, taken: Mapping[str, Tensor], weights: ExpertWeights, served: Scheme) -> None:
    """Let `module` hold `weights`, whose parameters were taken with `take_parameters`."""
    for name, empty in taken.items():
        delattr(module, name)
        module.register_parameter(name, nn.Parameter(empty, requires_grad=False))
    handles = (
        *guard_module(module),
        module.register_forward_pre_hook(_refuse_unless_ours),
        module.register_state_dict_pre_hook(_refuse_to_save),
    )
    dtype, device = taken["down_proj"].dtype, weights.down.data.device
    setattr(module, PACKED, Packed(served, dtype, device, handles))
    setattr(module, WEIGHTS, weights)


def unpack(model: nn.Module, dtype: torch.dtype) -> None:
    """Make plain parameters in `dtype` of all packed weights. Raises PatchError, changing nothing, if it is patched.

    A layer that there is no memory for stays packed, as do those after it, and a later call goes on with them.
    """
    modules = [module for module in model.modules() if packed_of(module) is not None]
    if any(state_of(module) for module in modules):
        raise PatchError(
            f"the packed weights of {model.__class__.__name__} were given to backends: call unpatch(model) first"
        )
    for module in modules:
        packed, weights = vars(module)[PACKED], vars(module)[WEIGHTS]
        stored = declared_storage(module).stored(weights.dequantize(dtype))
        plain = {name: nn.Parameter(values.to(dtype)) for name, values in stored.items()}
        for handle in packed.handles:
            handle.remove()
        unguard_module(module)
        delattr(module, WEIGHTS)
        delattr(module, PACKED)
        for name, parameter in plain.items():
            module.register_parameter(name, parameter)


def _refuse_unless_ours(module: nn.Module, arguments: Any) -> None:
    del arguments
    bound, chosen = state_of(module), implementation_of(module) or "eager"
    ours = (
        chosen == bound.implementation
        if isinstance(bound, Bound)
        else ALL_EXPERTS_FUNCTIONS.get_interface(chosen, _eager) is experts_forward
    )
    if not ours:
        raise PatchError(
            f"{module.__class__.__name__} is to run {chosen!r}, but its weights are packed, which moesaic alone runs: "
            f'call patch(model), or model.set_experts_implementation("{NAME}")'
        )


def _eager(*arguments: Any) -> Tensor:
    """What `get_interface` gives for "eager", which is never called."""
    raise NotImplementedError


def _refuse_to_save(module: nn.Module, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's signature
    del keep_vars
    raise PatchError(cannot_save(f"{prefix}{module.__class__.__name__}"))


def cannot_save(what: str) -> str:
    """What a user reads who saves packed weights."""
    return (
        f"{what} holds the packed weights of a quantized checkpoint, for which transformers has no names: copy the "
        "checkpoint's directory, or call model.dequantize() and save plain weights"
    )
