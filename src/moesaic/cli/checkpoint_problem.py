"""From a local checkpoint directory to the problem of its expert layers, without reading a weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from moesaic.backends import Reference
from moesaic.cli.checkpoint import check_has_experts, model_without_weights, read_config
from moesaic.errors import CheckpointError
from moesaic.problem import Problem


def checkpoint_problem(directory: str, *, trust_remote_code: bool) -> Problem:
    """The problem of the expert layers in `directory`.

    Raises CheckpointError if the directory cannot be read, has no experts, stores them quantized, has a layer that
    is not understood, or has layers that differ.
    """
    config = read_config(directory, trust_remote_code=trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            f"{directory!r} stores quantized weights, of which config.json does not say enough: give the --problem "
            "that 'moesaic checkpoint' prints"
        )
    return unquantized_problem(directory, config, trust_remote_code=trust_remote_code)


def unquantized_problem(directory: str, config: Any, *, trust_remote_code: bool) -> Problem:
    """The problem of the layers as the model's own code describes them, with plain weights whatever the files hold."""
    model = model_without_weights(directory, config, trust_remote_code=trust_remote_code)
    check_has_experts(directory, model)
    found = _problems(directory, model)
    if len(set(found.values())) > 1:
        listed = "; ".join(f"{name}: {problem!r}" for name, problem in found.items())
        raise CheckpointError(f"{directory!r} has expert layers that differ: give one of them as --problem ({listed})")
    return next(iter(found.values()))


def _problems(directory: str, model: nn.Module) -> dict[str, Problem]:
    from moesaic.integrations.transformers.discovery import find_layers  # noqa: PLC0415
    from moesaic.integrations.transformers.examine import Refused, examine  # noqa: PLC0415

    found: dict[str, Problem] = {}
    for layer in find_layers(model):
        _give_shapes_a_device(layer.module)
        examined: Any = examine(layer.module, (Reference(),))
        if examined.resolution is None:
            reasons = "; ".join(map(str, examined.gaps)) if isinstance(examined, Refused) else "no reason given"
            raise CheckpointError(f"{directory!r}: {layer.name} is not understood ({reasons}): give a --problem")
        found[layer.name] = examined.resolution.problem
    return found


def _give_shapes_a_device(module: nn.Module) -> None:
    """Put zeros in the place of meta parameters: one element each, expanded, so that they take no memory."""
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            zeros = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            owner.register_parameter(name, nn.Parameter(zeros, requires_grad=False))
