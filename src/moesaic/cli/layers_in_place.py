"""The expert layers of a transformers model, run for a while by the oracle in any scheme."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from moesaic.backends import Reference
from moesaic.batches import Routing, StandardBatch
from moesaic.errors import CheckpointError
from moesaic.layer import Experts, bind
from moesaic.problem import Problem
from moesaic.quant import Plain, Scheme
from moesaic.weights import ExpertWeights


@final
@dataclass(frozen=True, eq=False)
class LayerInPlace:
    """One experts module, its problem and its plain weights."""

    name: str
    module: nn.Module
    problem: Problem
    weights: ExpertWeights

    def bound(self, scheme: Scheme, dtype: torch.dtype) -> Experts:
        """The layer in `scheme`, with rows in `dtype`, by the oracle."""
        plain = isinstance(scheme.weights, Plain)
        weights = self.weights.dequantize(dtype) if plain else self.weights.quantize(scheme.weights)
        problem = replace(self.problem, dtype=dtype, scheme=scheme)
        return bind(problem, weights, backends=(Reference(),))


def layers_of(model: nn.Module) -> tuple[LayerInPlace, ...]:
    """Every layer with experts. Raises CheckpointError if there is none, or one is not understood."""
    from moesaic.integrations.transformers.discovery import find_layers  # noqa: PLC0415
    from moesaic.integrations.transformers.examine import Refused, examine, parameters  # noqa: PLC0415

    found: list[LayerInPlace] = []
    for layer in find_layers(model):
        examined = examine(layer.module, (Reference(),))
        if isinstance(examined, Refused):
            raise CheckpointError(f"{layer.name} is not understood ({'; '.join(map(str, examined.gaps))})")
        tensors = {name: tensor.detach() for name, tensor in parameters(layer.module).items()}
        weights = examined.storage.canonical(tensors)
        found.append(LayerInPlace(layer.name, layer.module, examined.resolution.problem, weights))
    if not found:
        raise CheckpointError(f"the {model.__class__.__name__} has no experts: give an MoE model")
    return tuple(found)


@contextmanager
def running(
    layers: tuple[LayerInPlace, ...], experts: Mapping[str, Experts], seen: dict[str, list[StandardBatch]] | None = None
) -> Generator[None, None, None]:
    """Within the block each layer runs the experts of its name; `seen` collects the batches that they get."""

    def forward(name: str, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> Tensor:
        batch = StandardBatch(hidden_states, Routing(topk_ids, topk_weights.float()))
        if seen is not None:
            seen.setdefault(name, []).append(batch)
        return experts[name](batch)

    try:
        for layer in layers:
            vars(layer.module)["forward"] = partial(forward, layer.name)
        yield
    finally:
        for layer in layers:
            vars(layer.module).pop("forward", None)
