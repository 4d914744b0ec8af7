"""What a model refuses while its expert weights are elsewhere than in its parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moesaic.errors import PatchError
from moesaic.integrations.transformers.state import Bound, implementation_of, packed_of, state_of

GUARDED = "_apply"
"""The method behind `to`, `cuda`, `half` and the like, which is replaced on models and modules that are guarded."""

LOADING = "_moesaic_loading"
"""The attribute of a guarded model with the handle of the hook that refuses to load weights."""


def guard_module(module: nn.Module) -> tuple[RemovableHandle, ...]:
    """Let an experts module refuse other implementations, to load weights and to be moved, until they are removed."""
    setattr(module, GUARDED, partial(_refuse_to_move, module))
    return (
        module.register_forward_pre_hook(_refuse_others),
        module.register_load_state_dict_pre_hook(_refuse_to_load),
    )


def unguard_module(module: nn.Module) -> None:
    """The opposite, but for the handles, which are to be removed."""
    delattr(module, GUARDED)


def guard_model(model: nn.Module) -> None:
    """Let `model` refuse before anything of it is loaded or moved. Guarding it twice is guarding it once."""
    if LOADING not in vars(model):
        setattr(model, LOADING, model.register_load_state_dict_pre_hook(_refuse_to_load))
        setattr(model, GUARDED, partial(_apply_unless_it_moves, model))


def unguard_model(model: nn.Module) -> None:
    """The opposite, unless weights of `model` are packed: then it stays guarded."""
    if LOADING in vars(model) and not any(map(packed_of, model.modules())):
        vars(model)[LOADING].remove()
        delattr(model, LOADING)
        delattr(model, GUARDED)


def _moves(module: nn.Module, change: Callable[[Tensor], Tensor]) -> bool:
    """Whether `change`, as given to `nn.Module._apply`, takes weights that `module` gave away elsewhere."""
    state, packed = state_of(module), packed_of(module)
    if isinstance(state, Bound):
        dtype, device = state.experts.problem.dtype, state.device
    elif packed is not None:
        dtype, device = packed.dtype, packed.device
    else:
        return False
    after = change(torch.empty(0, dtype=dtype, device=device))
    return (after.dtype, after.device) != (dtype, device)


def _refuse_others(module: nn.Module, arguments: Any) -> None:
    """Eager code would compute with empty parameters without a sound: torch adds meta tensors to others."""
    del arguments
    bound, chosen = state_of(module), implementation_of(module)
    if isinstance(bound, Bound) and bound.released and chosen != bound.implementation:
        raise PatchError(
            f"{module.__class__.__name__} is to run {chosen!r}, but its weights were given to the backend "
            f"{bound.experts.backend.name}: call unpatch(model) before set_experts_implementation"
        )


def _refuse_to_load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *details: Any) -> None:
    del state_dict, details
    what = f"{prefix}{module.__class__.__name__}"
    if any(map(packed_of, module.modules())):
        raise PatchError(
            f"weights cannot be loaded into {what}, whose expert weights are those of a quantized checkpoint: load "
            "the checkpoint that is wanted instead"
        )
    raise PatchError(
        f"weights cannot be loaded into {what}, whose expert weights were given to a backend: call unpatch(model), "
        "load, and patch again"
    )


def _refuse_to_move(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002 - torch's signature
    del recurse
    if _moves(module, change):
        raise PatchError(_cannot_move(module, packed=packed_of(module) is not None))
    return module


def _apply_unless_it_moves(
    model: nn.Module,
    change: Callable[[Tensor], Tensor],
    recurse: bool = True,  # noqa: FBT001, FBT002 - torch's signature
) -> nn.Module:
    for module in model.modules():
        if _moves(module, change):
            raise PatchError(_cannot_move(model, packed=packed_of(module) is not None))
    return getattr(model.__class__, GUARDED)(model, change, recurse)  # the method that this one stands before


def _cannot_move(what: nn.Module, *, packed: bool) -> str:
    name = what.__class__.__name__
    if packed:
        return (
            f"{name} cannot be moved or converted, because its expert weights are packed: load it with the device_map "
            "and the dtype that are wanted"
        )
    return (
        f"{name} cannot be moved or converted, because its expert weights were given to a backend: call "
        "unpatch(model), move it, and patch again"
    )
