"""Load: how many tokens each expert of each layer got, checked before anything is planned on it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from moesaic.checks import instance
from moesaic.errors import DispatchError


def checked_load(load: object) -> Float[Tensor, "layers E"]:
    """`load [layers, E]`, or `[E]` of one layer, of any number type and device, as float64 in main memory.

    Raises DispatchError for another shape, and for a value that is negative, NaN or infinite, with its place.
    """
    instance("balance", "load", load, Tensor, DispatchError, example="torch.tensor([[90.0, 132.0, 40.0, 61.0]])")
    assert isinstance(load, Tensor)  # noqa: S101 - for the type checker
    if load.ndim not in (1, 2) or not load.numel() or load.is_complex() or load.dtype == torch.bool:
        raise DispatchError(f"the load is {load.dtype} of shape {tuple(load.shape)}, but it needs numbers [layers, E]")
    layers = load.detach().to("cpu", torch.float64).reshape(-1, load.shape[-1])
    wrong = (~layers.isfinite() | (layers < 0)).nonzero()
    if len(wrong):
        layer, expert = wrong[0].tolist()
        raise DispatchError(
            f"the load of expert {expert} in layer {layer} is {float(layers[layer, expert])}, but it needs a finite "
            f"number of at least 0 ({len(wrong)} values are wrong)"
        )
    return layers
