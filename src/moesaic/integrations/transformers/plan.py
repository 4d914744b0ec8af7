"""plan_loading: which layers of a checkpoint stay packed in a model, and which other weights have to be dequantized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from torch import nn
from transformers import PreTrainedModel

from moesaic.checkpoints import Checkpoint, ExpertLayer
from moesaic.checkpoints.files import OpenFiles
from moesaic.errors import CheckpointError, PatchError
from moesaic.integrations.transformers.dense import dense_weights
from moesaic.integrations.transformers.discovery import find_layers
from moesaic.integrations.transformers.names import Names
from moesaic.integrations.transformers.storage import declared_storage, parameters
from moesaic.quant import Plain, Scheme


@final
@dataclass(frozen=True)
class PackedLayer:
    """The experts module `module` of the model gets the weights of `layer` of the checkpoint."""

    module: str
    layer: str
    served: Scheme


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """`dense`: by the name of a parameter, that of the quantized matrix (without `.weight`) it is read from."""

    layers: tuple[PackedLayer, ...]
    dense: Mapping[str, str]


def plan_loading(model: PreTrainedModel, checkpoint: Checkpoint, files: OpenFiles) -> Plan:
    """What is to be done when `checkpoint` is loaded into `model`, which has no weights yet.

    Reads names and headers, one expert of each layer and the scales of dense layers. Raises CheckpointError about a
    tensor that would be lost or read wrongly, PatchError about a layer of the model that cannot be packed.
    """
    names = Names.of(model)
    return Plan(tuple(_packed_layers(model, checkpoint, names, files)), dense_weights(checkpoint, names, files))


def _packed_layers(
    model: PreTrainedModel, checkpoint: Checkpoint, names: Names, files: OpenFiles
) -> Iterator[PackedLayer]:
    found = {layer.name: layer for layer in find_layers(model)}
    outside = [f"{layer.name} ({layer.module.__class__.__name__})" for layer in found.values() if not layer.decorated]
    if outside:
        raise PatchError(
            f"{outside[0]} does not go through transformers' experts interface, so that its weights cannot stay "
            "packed: load the checkpoint with from_pretrained"
        )
    there = {_module_of(layer, checkpoint, names, files): layer for layer in checkpoint.layers}
    for name, layer in found.items():
        if name not in there:
            listed = ", ".join(each.name for each in checkpoint.layers[:3])
            raise CheckpointError(
                f"{checkpoint.directory} has no experts for {name} of {model.__class__.__name__}: those that it has "
                f"are {listed}, ..., and transformers gives them other names"
            )
        served = checkpoint.scheme(there[name].name)
        if not isinstance(served.weights, Plain):  # transformers loads plain ones itself
            _check_sizes(layer.module, name, checkpoint, there[name])
            yield PackedLayer(name, there[name].name, served)


def _module_of(layer: ExpertLayer, checkpoint: Checkpoint, names: Names, files: OpenFiles) -> str | None:
    """The module that transformers makes of the plain tensors of `layer`; None if the model has none such."""
    arrangement = layer.naming.arrangement(layer.name, files)
    pieces = layer.naming.pieces(layer.name, 0, checkpoint.num_experts(layer.name), arrangement)
    for name in (pieces[-1].names.of("weight"), f"{layer.name}.down_proj"):  # stacked experts may be stored one by one
        target = names.target(name)
        if target is not None:
            return target.module
    return None


def _check_sizes(module: nn.Module, name: str, checkpoint: Checkpoint, layer: ExpertLayer) -> None:
    storage = declared_storage(module)
    wanted = storage.canonical({name: tensor.detach().to("meta") for name, tensor in parameters(module).items()})
    first, count = checkpoint.read(layer.name, experts=range(1)), checkpoint.num_experts(layer.name)
    shapes = [(count, *stored.shape[1:]) for stored in (first.gate_up, first.down)]
    if shapes != [wanted.gate_up.shape, wanted.down.shape]:
        raise CheckpointError(
            f"{layer.name} of {checkpoint.directory} has projections of {shapes[0]} and {shapes[1]}, but {name} needs "
            f"{wanted.gate_up.shape} and {wanted.down.shape}: the configuration is that of another model"
        )
    if (first.down_bias is not None, first.output_scale is not None) != (storage.biased, storage.normed):
        raise CheckpointError(
            f"{layer.name} of {checkpoint.directory} has {_extras(first.down_bias, first.output_scale)}, but {name} "
            f"needs {_extras(storage.biased or None, storage.normed or None)}"
        )


def _extras(bias: object | None, norm: object | None) -> str:
    return f"{'a' if bias is not None else 'no'} bias and {'a' if norm is not None else 'no'} norm of its outputs"
