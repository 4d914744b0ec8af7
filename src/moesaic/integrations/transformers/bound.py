"""attach and detach: give an experts module to a backend, and take it back, bit for bit.

A parameter whose storage the backend keeps stays where it is. One that the backend holds a copy of is released:
the module keeps an empty one on the meta device, and `state_dict` makes its values from the backend's copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moesaic.errors import PatchError
from moesaic.integrations.transformers.examine import Examined, parameters
from moesaic.integrations.transformers.storage import Storage
from moesaic.layer import Experts, bind

SLOT = "_moesaic"
"""The attribute of an experts module that holds its `Bound` or its `Unbound`."""

IMPLEMENTATION = "_experts_implementation_internal"
"""Where a transformers configuration keeps the name of its experts implementation."""

GUARDED = "_apply"
"""The method behind `to`, `cuda`, `half` and the like, which is replaced on patched modules."""


@final
@dataclass(frozen=True, eq=False)
class Bound:
    """What a module was given to: `released` parameters are empty, only `trained` ones can get gradients."""

    experts: Experts
    storage: Storage
    released: tuple[str, ...]
    trained: tuple[str, ...]
    device: torch.device
    implementation: str
    handles: tuple[RemovableHandle, ...]


@final
@dataclass(frozen=True, eq=False)
class Unbound:
    """A module of a patched model that is not covered: what it ran before."""

    forward: Callable[..., Tensor]


def implementation_of(module: nn.Module) -> str | None:
    """The name of the experts implementation that transformers calls for `module`."""
    return vars(vars(module)["config"])[IMPLEMENTATION]


def state_of(module: nn.Module) -> Bound | Unbound | None:
    """What was made of `module`; None if it is as it was."""
    return vars(module).get(SLOT)


def attach(module: nn.Module, examined: Examined, implementation: str) -> Bound:
    """Give the module's weights to the backend and release what is held twice. Changes nothing if it raises.

    `implementation` is the name under which transformers calls the module from now on.
    """
    storage, resolution = examined.storage, examined.resolution
    tensors = parameters(module)
    trainable = tuple(name for name, tensor in tensors.items() if tensor.requires_grad)
    device = tensors["down_proj"].device
    with torch.enable_grad():  # views of trainable weights stay trainable, whatever the caller's mode
        weights = storage.canonical(
            {name: tensor.detach() if name in storage.reordered else tensor for name, tensor in tensors.items()}
        )
    del tensors
    try:
        _release(module, storage.reordered)  # before the backend makes its own copy, so that there are never three
        experts = bind(resolution.problem, weights, machine=resolution.machine, backends=(resolution.backend,))
    except BaseException:
        _restore(module, {name: storage.stored(weights)[name] for name in storage.reordered})
        raise
    del weights
    kept = {_address(tensor) for tensor in experts.tensors} - {0}  # 0: no memory of its own, or packed
    copied = tuple(name for name, tensor in parameters(module).items() if _address(tensor) not in kept)
    bound = Bound(
        experts,
        storage,
        released=tuple(name for name in copied if name in storage.names),
        trained=tuple(name for name in trainable if name not in copied),
        device=device,
        implementation=implementation,
        handles=(
            module.register_forward_pre_hook(_refuse_others),
            module.register_state_dict_post_hook(_fill_in),
            module.register_load_state_dict_pre_hook(_refuse_to_load),
        ),
    )
    setattr(module, GUARDED, partial(_refuse_to_move, module))
    setattr(module, SLOT, bound)  # from here on `detach` gives everything back
    _release(module, bound.released)
    return bound


def detach(module: nn.Module) -> None:
    """Give the module its weights back, in new tensors where they were released."""
    match state_of(module):
        case Bound() as bound:
            for handle in bound.handles:
                handle.remove()
            delattr(module, SLOT)
            delattr(module, GUARDED)
            _restore(module, _released_values(bound))
        case Unbound():
            delattr(module, SLOT)
        case None:
            pass


def moves(bound: Bound, change: Callable[[Tensor], Tensor]) -> bool:
    """Whether `change`, as given to `nn.Module._apply`, takes tensors to another device or dtype."""
    before = torch.empty(0, dtype=bound.experts.problem.dtype, device=bound.device)
    after = change(before)
    return (after.dtype, after.device) != (before.dtype, before.device)


def _release(module: nn.Module, names: Iterable[str]) -> None:
    for name in names:
        parameter = module.get_parameter(name)
        if not parameter.is_meta:
            empty = torch.empty_like(parameter, device="meta")
            module.register_parameter(name, nn.Parameter(empty, requires_grad=parameter.requires_grad))


def _restore(module: nn.Module, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value, requires_grad=module.get_parameter(name).requires_grad))


def _released_values(bound: Bound) -> dict[str, Tensor]:
    if not bound.released:
        return {}
    stored = bound.storage.stored(bound.experts.canonical())
    return {name: stored[name] for name in bound.released}


def _fill_in(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    del local_metadata
    bound = state_of(module)
    if isinstance(bound, Bound):
        state_dict.update({f"{prefix}{name}": value for name, value in _released_values(bound).items()})


def _refuse_others(module: nn.Module, arguments: Any) -> None:
    """Eager code would compute with released weights without a sound: torch adds meta tensors to others."""
    del arguments
    bound = state_of(module)
    if isinstance(bound, Bound) and bound.released and implementation_of(module) != bound.implementation:
        raise PatchError(
            f"{module.__class__.__name__} is to run {implementation_of(module)!r}, but its weights were given to the "
            f"backend {bound.experts.backend.name}: call unpatch(model) before set_experts_implementation"
        )


def _refuse_to_load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *details: Any) -> None:
    del state_dict, details
    raise PatchError(
        f"weights cannot be loaded into {prefix}{module.__class__.__name__}, whose weights were given to a backend: "
        "call unpatch(model), load, and patch again"
    )


def _refuse_to_move(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002 - torch's signature
    bound = state_of(module)
    if isinstance(bound, Bound) and moves(bound, change):
        raise PatchError(cannot_move(module.__class__.__name__))
    del recurse
    return module


def cannot_move(what: str) -> str:
    """What a user reads who moves a patched module."""
    return (
        f"{what} cannot be moved or converted, because its expert weights were given to a backend: call "
        "unpatch(model), move it, and patch again"
    )


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
