"""Quantized weights that are not experts': found in a checkpoint, and dequantized where transformers loads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor
from transformers.core_model_loading import ConversionOps
from typing_extensions import override

from moesaic.checkpoints import Checkpoint, Convention, FineGrainedFP8, Method
from moesaic.checkpoints.conventions import PLAIN_DTYPES
from moesaic.checkpoints.files import OpenFiles
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.checkpoints.naming import Piece, TensorNames
from moesaic.checkpoints.rest import rest_of
from moesaic.errors import CheckpointError, FormatError
from moesaic.integrations.transformers.names import Names
from moesaic.quant import Quantized


def dense_weights(checkpoint: Checkpoint, names: Names, files: OpenFiles) -> dict[str, str]:
    """Every parameter of the model whose weight is quantized, and the matrix of the checkpoint that it is.

    Each is read once, without its values, so that a fault in one is found before anything is loaded. Raises
    CheckpointError also about a tensor in few bits that is no such matrix: transformers would take codes for values.
    """
    return dict(_found(checkpoint, names, files))


def dense_convention(stem: str, method: Method) -> Convention:
    """How the matrix `stem` is kept. What is said of experts alone (DeepSeek-V4's `expert_dtype`) is not said of it."""
    return (replace(method, fp4=False) if isinstance(method, FineGrainedFP8) else method).convention(stem)


def read_dense(stem: str, method: Method, files: OpenFiles) -> Quantized:
    """The matrix `stem` (`model.layers.0.self_attn.q_proj`) as it is stored: views of the file where it can be."""
    matrix = StoredMatrix(files, Piece(TensorNames(stem), "down"))  # any one matrix: which projection does not matter
    convention = dense_convention(stem, method)
    surplus = matrix.surplus((*convention.suffixes, "bias"))
    if surplus is not None:
        needed = f"no tensor beside the weight but {', '.join(convention.suffixes)}, as the configuration says"
        raise matrix.fault(surplus, "is there", needed)
    try:
        return convention.read(matrix)
    except FormatError as fault:
        raise CheckpointError(f"{stem}: {fault}") from fault


@final
class Dequantize(ConversionOps):
    """The operation that transformers applies to the tensors of a quantized matrix: it becomes plain.

    `stored` gives the matrix of which a parameter of that name is made, None for a plain one.
    """

    def __init__(self, stored: Callable[[str], Quantized | None]) -> None:
        self.hf_quantizer = stored  # by this attribute transformers knows that codes keep their dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> Dequantize:
        return self  # transformers copies operations for every parameter

    @override
    @torch.no_grad()
    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        *,
        full_layer_name: str = "",
        model: Any = None,
        **details: Any,
    ) -> dict[str, Any]:
        """The plain weight `full_layer_name`, from the files: the tensors given are views of the same bytes."""
        dtype = model.get_parameter(full_layer_name).dtype
        first: Tensor = next(iter(input_dict.values()))[0]
        stored = self.hf_quantizer(full_layer_name)
        if stored is None:  # plain, but called like quantized ones of other layers
            return {full_layer_name: first.to(dtype)}
        scales = {name: scale.to(first.device) for name, scale in stored.scales.items()}
        there = Quantized(stored.format, stored.data.to(first.device), scales, stored.parts)
        return {full_layer_name: there.dequantize(dtype)}


def _found(checkpoint: Checkpoint, names: Names, files: OpenFiles) -> Iterator[tuple[str, str]]:
    done: set[str] = set()
    for name in (name for each in rest_of(checkpoint).values() for name in each):
        stem, own, dtype = name.rpartition(".")[0], names.target(name), files.read(name).dtype
        if stem in done or dtype in PLAIN_DTYPES:
            continue
        if own is not None and not names.tensors[own.name].is_floating_point():
            continue  # an integer of the model itself
        matrix = names.target(f"{stem}.weight")
        target = matrix or own
        if target is None:
            continue  # of a part that the model does not have
        if target is not matrix or target.converted:
            raise CheckpointError(
                f"{files.file(name)}: {name} is {dtype}, and transformers makes {target.name} of it, but only a matrix "
                "X.weight that becomes one parameter is dequantized: load the checkpoint with from_pretrained"
            )
        stored, wanted = read_dense(stem, checkpoint.method, files), tuple(names.tensors[target.name].shape)
        if stored.shape != wanted:
            raise CheckpointError(
                f"{stem} of {checkpoint.directory} is {stored.shape}, but {target.name} needs {wanted}: the "
                "configuration is that of another model"
            )
        done.add(stem)
        yield target.name, stem
