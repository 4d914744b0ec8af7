"""attach and detach: give an experts module to a backend, and take it back, bit for bit.

A parameter whose storage the backend keeps stays where it is. One that the backend holds a copy of is released:
the module keeps an empty one on the meta device, and `state_dict` makes its values from the backend's copy. Weights
that are packed are handed over as they are, and come back so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from moesaic.integrations.transformers.examine import Examined
from moesaic.integrations.transformers.guards import guard_module, unguard_module
from moesaic.integrations.transformers.state import SLOT, WEIGHTS, Bound, Unbound, packed_of, packed_weights, state_of
from moesaic.integrations.transformers.storage import parameters
from moesaic.layer import Experts, bind
from moesaic.resolve import Resolution
from moesaic.weights import ExpertWeights


def attach(module: nn.Module, examined: Examined, implementation: str) -> Bound:
    """Give the module's weights to the backend and release what is held twice. Changes nothing if it raises.

    `implementation` is the name under which transformers calls the module from now on.
    """
    packed = packed_weights(module)
    if packed is None:
        return _attach_parameters(module, examined, implementation)
    experts = _bind(examined.resolution, packed)
    device = packed.gate_up.data.device
    bound = Bound(experts, examined.storage, (), (), device, implementation, ())  # it is guarded as a packed module
    setattr(module, SLOT, bound)
    delattr(module, WEIGHTS)
    return bound


def detach(module: nn.Module) -> None:
    """Give the module its weights back, in new tensors where they were released."""
    match state_of(module):
        case Bound() as bound if packed_of(module) is not None:
            setattr(module, WEIGHTS, bound.experts.canonical())
            delattr(module, SLOT)
        case Bound() as bound:
            for handle in bound.handles:
                handle.remove()
            delattr(module, SLOT)
            unguard_module(module)
            _restore(module, _released_values(bound))
        case Unbound():
            delattr(module, SLOT)
        case None:
            pass


def _bind(resolution: Resolution, weights: ExpertWeights) -> Experts:
    return bind(resolution.problem, weights, machine=resolution.machine, backends=(resolution.backend,))


def _attach_parameters(module: nn.Module, examined: Examined, implementation: str) -> Bound:
    storage = examined.storage
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
        experts = _bind(examined.resolution, weights)
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
        handles=(*guard_module(module), module.register_state_dict_post_hook(_fill_in)),
    )
    setattr(module, SLOT, bound)  # from here on `detach` gives everything back
    _release(module, bound.released)
    return bound


def _release(module: nn.Module, names: Iterable[str]) -> None:
    for name in names:
        parameter = module.get_parameter(name)
        if not parameter.is_meta:
            empty = torch.empty_like(parameter, device="meta")
            module.register_parameter(name, nn.Parameter(empty, requires_grad=parameter.requires_grad))


def _restore(module: nn.Module, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        before = module.get_parameter(name)
        module.register_parameter(name, nn.Parameter(_spread_as(before, value), requires_grad=before.requires_grad))


def _released_values(bound: Bound) -> dict[str, Tensor]:
    if not bound.released:
        return {}
    stored = bound.storage.stored(bound.experts.canonical())
    return {name: stored[name] for name in bound.released}


def _fill_in(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    del local_metadata
    bound = state_of(module)
    if isinstance(bound, Bound):
        for name, value in _released_values(bound).items():
            state_dict[f"{prefix}{name}"] = _spread_as(state_dict.get(f"{prefix}{name}"), value)


def _spread_as(before: Tensor | None, value: Tensor) -> Tensor:
    """`value`, as this rank's part if `before` is a tensor spread over ranks: else the other parts would be lost."""
    if before is None or not is_traceable_wrapper_subclass(before):
        return value
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - half a second, for a model over ranks

    if not isinstance(before, DTensor):
        return value
    mesh, placements, shape, stride = before.device_mesh, before.placements, before.shape, before.stride()
    return DTensor.from_local(value, mesh, placements, run_check=False, shape=shape, stride=stride)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
