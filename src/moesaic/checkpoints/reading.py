"""Reading the experts of one layer: matrix by matrix into tensors that are allocated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from moesaic.checkpoints.conventions import PLAIN_DTYPES, Convention, PlainWeight
from moesaic.checkpoints.files import OpenFiles
from moesaic.checkpoints.layers import ExpertLayer
from moesaic.checkpoints.matrix import StoredMatrix
from moesaic.checkpoints.methods import Method
from moesaic.checkpoints.naming import Piece
from moesaic.checkpoints.stack import Stack
from moesaic.errors import CheckpointError, FormatError
from moesaic.quant import FP8, INT8, Quantized
from moesaic.weights import ExpertWeights

Progress = Callable[[int, int], None]
"""Called after each expert with how many are read, and of how many."""


def read_layer(
    files: OpenFiles,
    layer: ExpertLayer,
    method: Method,
    config: Mapping[str, Any],
    *,
    experts: Sequence[int],
    device: torch.device,
    progress: Progress | None,
) -> ExpertWeights:
    """The weights of `experts`, in that order, in the files' format. Raises CheckpointError, and keeps nothing."""
    naming = layer.naming
    arrangement = naming.arrangement(layer.name, files)
    total = naming.num_experts(layer.name, files, config)
    stacks: dict[str, Stack] = {}
    for place, expert in enumerate(experts):
        for piece in naming.pieces(layer.name, expert, total, arrangement):
            matrix = StoredMatrix(files, piece)
            stored = _read(matrix, method)
            if piece.projection not in stacks:
                parts = 2 if arrangement.gated and piece.projection == "gate_up" else 1
                stacks[piece.projection] = Stack.for_matrix(
                    matrix, stored, num_experts=len(experts), parts=parts, device=device
                )
            stacks[piece.projection].put(place, matrix, stored)
        if progress is not None:
            progress(place + 1, len(experts))
    return _weights(files, layer, stacks["gate_up"], stacks["down"], device)


def convention_of(matrix: StoredMatrix, method: Method) -> Convention:
    """How `matrix` is kept: plainly where a floating-point weight stands alone, whatever the configuration says."""
    plain = (
        matrix.has("weight") and matrix.surplus(("weight", "bias")) is None and matrix.dtype("weight") in PLAIN_DTYPES
    )
    return PlainWeight() if plain else method.convention(matrix.module)


def _read(matrix: StoredMatrix, method: Method) -> Quantized:
    convention = convention_of(matrix, method)
    surplus = matrix.surplus((*convention.suffixes, *(("bias",) if matrix.piece.biased else ())))
    if surplus is not None:
        needed = f"no tensor beside the weight but {', '.join(convention.suffixes)}, as the configuration says"
        if surplus == "bias":
            needed = "no bias, or a Naming (Checkpoint.namings) that says whether gate and up alternate as in gpt-oss"
        raise matrix.fault(surplus, "is there", needed)
    try:
        stored = convention.read(matrix)
    except FormatError as fault:
        raise CheckpointError(f"{matrix.module}: {fault}") from fault
    _check_parts(matrix.piece, stored)
    return stored


def _check_parts(piece: Piece, stored: Quantized) -> None:
    """Raise CheckpointError if gate and up, in one matrix, share a scale: then neither has scales of its own."""
    if piece.count == 1:
        return
    rows, columns = stored.shape
    kind = stored.format
    tile = kind.granularity.tile(rows, columns)[0] if isinstance(kind, FP8 | INT8) else 1
    odd = any(values.shape[0] % piece.count for values in stored.tensors)
    if odd or (tile > 1 and (piece.interleaved or rows // piece.count % tile)):
        raise CheckpointError(
            f"{piece.names.stem} is {stored.shape} in {kind!r}: a scale reaches over the boundary of gate and up, "
            "which moesaic keeps apart; store them as two tensors"
        )


def _weights(files: OpenFiles, layer: ExpertLayer, gate_up: Stack, down: Stack, device: torch.device) -> ExpertWeights:
    first, second = gate_up.stored(), down.stored()
    width, hidden = gate_up.tensors["data"].shape[2], first.shape[-1]
    where = f"{files.files.directory}: {layer.name}"
    if gate_up.format != down.format:
        raise CheckpointError(
            f"{where} keeps its first projection as {gate_up.format!r} and its second as {down.format!r}, but the "
            "weights of a layer have one format"
        )
    if second.shape[1:] != (hidden, width):
        raise CheckpointError(
            f"{where} has first projections of {width} rows and {hidden} columns, so that its second needs "
            f"{(hidden, width)}, but it is {second.shape[1:]}"
        )
    if (gate_up.bias is None) != (down.bias is None):
        raise CheckpointError(f"{where} has a bias in one projection only, but both need one, or neither")
    norm = layer.naming.norm(layer.name)
    scale = None
    if norm is not None and norm in files.files.where:
        scale = (1 + files.read(norm).to(torch.float32)).to(device)
    return ExpertWeights(first, second, gate_up.joined_bias(), down.joined_bias(), scale)
