"""patch: let a transformers model run its experts through moesaic, all that can be or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from moesaic.backends import BACKENDS, Backend
from moesaic.errors import PatchError
from moesaic.integrations.transformers.bound import attach, detach
from moesaic.integrations.transformers.discovery import Found, find_layers
from moesaic.integrations.transformers.examine import Examined, Refused, examine
from moesaic.integrations.transformers.forward import NAME, experts_forward, register
from moesaic.integrations.transformers.guards import guard_model, unguard_model
from moesaic.integrations.transformers.report import LayerReport, PatchReport
from moesaic.integrations.transformers.state import (
    IMPLEMENTATION,
    SLOT,
    Unbound,
    held_bytes,
    implementation_of,
    state_of,
)

BEFORE = "_moesaic_before"
"""The attribute of a patched model with the implementation that each of its configurations had."""


def patch(
    model: PreTrainedModel,
    *,
    backends: Sequence[Backend[Any]] = BACKENDS,
    strict: bool = False,
    quantize_inputs: bool = False,
) -> PatchReport:
    """Run the experts of `model` through moesaic and report every MoE layer, covered or not.

    Weights are taken over, not doubled. All layers are examined before the first is changed; if a later step fails,
    the model is given back as it was and the error passes through. `quantize_inputs`: rows that meet packed weights
    (`load`) are rounded to the format in which the checkpoint's makers serve them (W8A8, W4A4); else they keep the
    model's dtype. Raises PatchError, with the report, if no layer can be covered, if `strict` and one cannot, or if the
    model is patched already.
    """
    _check_model(model)
    layers = find_layers(model)
    _check_unpatched(model, layers)
    examined = [examine(layer.module, backends, quantize_inputs=quantize_inputs) for layer in layers]
    report = _report(layers, examined)
    if not report.covered:
        raise PatchError(f"{model.__class__.__name__} was not patched: no layer can run through moesaic\n{report}")
    if strict and report.not_covered:
        raise PatchError(f"{model.__class__.__name__} was not patched: strict=True covers all layers or none\n{report}")
    before = _implementations(model, layers)
    try:
        for layer, found in zip(layers, examined, strict=True):
            if isinstance(found, Examined):
                attach(layer.module, found, NAME)
            elif layer.decorated:
                _keep_own_forward(layer.module)
        _switch(model, layers)
    except BaseException as fault:
        _give_back(layers, before)
        fault.add_note(f"while {model.__class__.__name__} was patched; it was left as it was")
        raise
    setattr(model, BEFORE, before)
    guard_model(model)
    return _report(layers, examined)


def unpatch(model: PreTrainedModel) -> None:
    """Give `model` its weights and its experts implementation back. Raises PatchError if it is not patched."""
    _check_model(model)
    layers = find_layers(model)
    if not any(state_of(layer.module) for layer in layers):
        raise PatchError(f"{model.__class__.__name__} is not patched, so there is nothing to give back")
    _give_back(layers, vars(model).get(BEFORE, ()))
    unguard_model(model)
    if BEFORE in vars(model):
        delattr(model, BEFORE)


def _check_model(model: object) -> None:
    if not isinstance(model, PreTrainedModel):
        raise PatchError(
            f"a {model.__class__.__name__} cannot be patched, but a transformers PreTrainedModel can: give the model "
            "inside, and call torch.compile or wrap it afterwards"
        )


def _check_unpatched(model: nn.Module, layers: Sequence[Found]) -> None:
    bound = [layer.name for layer in layers if state_of(layer.module)]
    if bound:
        raise PatchError(
            f"{model.__class__.__name__} is patched already ({len(bound)} layers, the first is {bound[0]}): "
            "call unpatch(model) first"
        )


def _report(layers: Iterable[Found], examined: Iterable[Examined | Refused]) -> PatchReport:
    return PatchReport(
        tuple(
            LayerReport(
                layer.name,
                layer.module.__class__.__name__,
                found.resolution,
                found.gaps if isinstance(found, Refused) else (),
                held_bytes(layer.module),
            )
            for layer, found in zip(layers, examined, strict=True)
        )
    )


def _keep_own_forward(module: nn.Module) -> None:
    """Let an experts module that is not covered run what it runs now."""
    interface = ALL_FP8_EXPERTS_FUNCTIONS if isinstance(module, FP8Experts) else ALL_EXPERTS_FUNCTIONS
    eager = vars(module.__class__.forward)["__wrapped__"]
    forward = interface.get_interface(implementation_of(module) or "eager", eager)
    if forward is not experts_forward:  # it would raise now, and still does
        setattr(module, SLOT, Unbound(forward))


def _implementations(model: nn.Module, layers: Sequence[Found]) -> tuple[tuple[Any, str | None], ...]:
    """Every configuration that `set_experts_implementation` may change, with its implementation."""
    configs = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    configs += [vars(layer.module)["config"] for layer in layers if layer.decorated]
    return tuple((config, vars(config)[IMPLEMENTATION]) for config in {id(c): c for c in configs}.values())


def _switch(model: PreTrainedModel, layers: Sequence[Found]) -> None:
    register()
    model.set_experts_implementation(NAME)
    for layer in layers:
        if layer.decorated:  # transformers overlooks a few parts, the vision tower of dots3_note for one
            vars(vars(layer.module)["config"])[IMPLEMENTATION] = NAME


def _give_back(layers: Sequence[Found], before: Sequence[tuple[Any, str | None]]) -> None:
    for layer in layers:
        detach(layer.module)
    for config, implementation in before:
        vars(config)[IMPLEMENTATION] = implementation
