"""write_experts: layers of experts as a checkpoint directory, in the names and the convention asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from moesaic.checkpoints.appearing import appearing
from moesaic.checkpoints.conventions import PlainWeight
from moesaic.checkpoints.files import INDEX
from moesaic.checkpoints.methods import Method
from moesaic.checkpoints.naming import PROJ, Naming, Piece
from moesaic.errors import CheckpointError, FormatError
from moesaic.quant import Plain, Quantized
from moesaic.weights import ExpertWeights


def write_experts(
    directory: str | Path,
    layers: Mapping[int, ExpertWeights],
    method: Method,
    *,
    naming: Naming = PROJ,
    block: str = "model.layers.{}.mlp.experts",
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write `layers` as `directory`: a file for each, an index, and `config` with a `quantization_config`.

    `block` is the name of a layer's experts, its number to be filled in. Plain weights stay plain under any method.
    Codes and scales are written as they are; where a convention divides by a global scale, its reciprocal is. The
    directory appears when it is complete, and must not be there before. Raises CheckpointError if the method does not
    hold the weights' format.
    """
    blocks = {block.format(number): weights for number, weights in layers.items()}
    with appearing(Path(directory)) as unfinished:
        tensors = (layer_tensors(name, weights, method, naming) for name, weights in blocks.items())
        write_files(unfinished, tensors, total=len(blocks))
        quantization = method.to_config()
        write_config(unfinished, {**(config or {}), **({"quantization_config": quantization} if quantization else {})})


def write_files(directory: Path, files: Iterable[Mapping[str, Tensor]], *, total: int) -> None:
    """Write the tensors of each of `total` files, and the index that says which file holds which.

    Raises CheckpointError if a file cannot be written, for instance on a full disk.
    """
    where: dict[str, str] = {}
    (directory / INDEX).touch()
    for number, tensors in enumerate(files, start=1):
        file = f"model-{number:05}-of-{total:05}.safetensors"
        try:
            save_file(dict(tensors), directory / file, metadata={"format": "pt"})
        except (SafetensorError, OSError) as fault:
            raise CheckpointError(f"{file} cannot be written: {fault}") from fault
        shutil.copymode(directory / INDEX, directory / file)  # safetensors lets nobody else read what it writes
        where |= dict.fromkeys(tensors, file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1), encoding="utf-8")


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write `config.json`."""
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def layer_tensors(block: str, weights: ExpertWeights, method: Method, naming: Naming) -> dict[str, Tensor]:
    """The tensors of one layer by their names in a checkpoint; `block` is what the names begin with."""
    if weights.output_scale is not None:
        raise CheckpointError(f"{block} has an output norm, which is not written")
    num_experts, inner = weights.down.shape[0], weights.down.shape[-1]
    arrangement = naming.written(gated=weights.gate_up.shape[-2] == 2 * inner)
    own: dict[str, Tensor] = {}
    shared: dict[str, list[Tensor]] = {}
    join = torch.stack
    for expert in range(num_experts):
        for piece in naming.pieces(block, expert, num_experts, arrangement):
            join = torch.cat if piece.flattened else torch.stack
            for suffix, tensor in _piece_tensors(piece, weights, expert, method).items():
                if piece.expert is None:
                    own[piece.names.of(suffix)] = tensor.contiguous().clone()  # a file shares no memory between names
                else:
                    shared.setdefault(piece.names.of(suffix), []).append(tensor)
    return {**own, **{name: join(tensors) for name, tensors in shared.items()}}


def _piece_tensors(piece: Piece, weights: ExpertWeights, expert: int, method: Method) -> Mapping[str, Tensor]:
    """The tensors of one matrix of one expert, by suffix."""
    first = piece.projection == "gate_up"
    stored, bias = (weights.gate_up, weights.gate_up_bias) if first else (weights.down, weights.down_bias)
    inner = weights.down.shape[-1]
    parts = stored.shape[-2] // inner if first else 1

    def rows(values: Tensor) -> Tensor:
        """This piece's rows of a tensor of one expert."""
        split = values.unflatten(0, (parts, -1))
        return piece.rows(split[piece.start : piece.start + piece.count])

    scales = {name: rows(scale[expert]) for name, scale in stored.scales.items()}
    plain = isinstance(stored.format, Plain)
    try:
        matrix = Quantized(stored.format, rows(stored.data[expert]), scales)
    except FormatError as fault:
        raise CheckpointError(f"{piece.names.stem} cannot be one matrix: {fault}") from fault
    tensors = dict((PlainWeight() if plain else method.convention(piece.names.stem)).write(matrix))
    if piece.transposed:
        if not plain:
            raise CheckpointError(
                f"{piece.names.stem} is transposed in this naming, which is known of plain weights only"
            )
        tensors = {suffix: tensor.mT for suffix, tensor in tensors.items()}
    if bias is not None:
        if not piece.biased:
            raise CheckpointError(f"{piece.names.stem} has no bias in this naming, but the weights have one")
        tensors["bias"] = rows(bias[expert])
    return tensors
