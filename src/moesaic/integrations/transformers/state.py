"""What moesaic has made of the experts modules of a model, kept as attributes of the modules themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moesaic.integrations.transformers.storage import Storage
from moesaic.layer import Experts
from moesaic.quant import Scheme
from moesaic.weights import ExpertWeights

SLOT = "_moesaic"
"""The attribute of an experts module that holds its `Bound` or its `Unbound`."""

PACKED = "_moesaic_packed"
"""The attribute of an experts module that holds its `Packed`."""

WEIGHTS = "_moesaic_weights"
"""The attribute of a packed module that holds its weights while no backend does."""

IMPLEMENTATION = "_experts_implementation_internal"
"""Where a transformers configuration keeps the name of its experts implementation."""


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


@final
@dataclass(frozen=True, eq=False)
class Packed:
    """A module whose weights stay in the checkpoint's format; its parameters are empty ones on the meta device.

    `served` is the scheme in which the checkpoint's makers serve them, `dtype` that of the rows.
    """

    served: Scheme
    dtype: torch.dtype
    device: torch.device
    handles: tuple[RemovableHandle, ...]


def implementation_of(module: nn.Module) -> str | None:
    """The name of the experts implementation that transformers calls for `module`."""
    return vars(vars(module)["config"])[IMPLEMENTATION]


def state_of(module: nn.Module) -> Bound | Unbound | None:
    """What was made of `module`; None if it is as it was."""
    return vars(module).get(SLOT)


def packed_of(module: nn.Module) -> Packed | None:
    """What `module` is if its weights stay packed; None if its parameters are its weights."""
    return vars(module).get(PACKED)


def packed_weights(module: nn.Module) -> ExpertWeights | None:
    """The weights of a packed module that no backend holds; None for any other module."""
    return vars(module).get(WEIGHTS)


def held_bytes(module: nn.Module) -> int:
    """Bytes of the expert weights that `module`, or the backend that it was given to, holds."""
    bound, packed = state_of(module), packed_weights(module)
    if isinstance(bound, Bound):
        tensors = bound.experts.tensors
    elif packed is not None:
        tensors = packed.tensors
    else:
        tensors = tuple(parameter for parameter in module.parameters() if not parameter.is_meta)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
