"""From a file to what `moesaic balance` plans on: the load of each layer, and the current plan if there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moesaic.dispatch.placement import Placement
from moesaic.errors import ParseError

FORM = '{"load": [[90, 132, ...], ...]}, one list a layer, or such a list alone'


def read_load(file: Path) -> tuple[Tensor, tuple[Placement, ...] | None]:
    """`load [layers, E]` float64, and the plan under "placements", as `moesaic balance --json` prints it.

    Raises ParseError that names the file and the line, layer or key; the values of the load are checked where it is
    used.
    """
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ParseError(f"LOAD got {str(file)!r}, which cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise ParseError(f"LOAD got {str(file)!r}, which is not JSON ({fault}): it needs {FORM}") from None
    if not isinstance(document, dict):
        document = {"load": document}
    layers = document.get("load")
    if not isinstance(layers, list) or not layers:
        raise ParseError(f"LOAD got {str(file)!r} with the load {_short(layers)}, but it needs {FORM}")
    if not any(isinstance(layer, list) for layer in layers):
        layers = [layers]
    rows = [
        _row(number, layer, len(layers[0]) if isinstance(layers[0], list) else 0) for number, layer in enumerate(layers)
    ]
    load = torch.tensor(rows, dtype=torch.float64)
    return load, _read_placements(document.get("placements"), *load.shape)


def _row(number: int, layer: object, length: int) -> list[float]:
    if not isinstance(layer, list) or not layer:
        raise ParseError(f"the load of layer {number} is {_short(layer)}, but it needs a list of numbers")
    if len(layer) != length:
        raise ParseError(f"the load of layer {number} has {len(layer)} experts, but that of layer 0 has {length}")
    for expert, value in enumerate(layer):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ParseError(f"the load of expert {expert} in layer {number} is {_short(value)}, but it needs a number")
        if isinstance(value, int) and value.bit_length() > 1000:  # no float holds it
            raise ParseError(f"the load of expert {expert} in layer {number} is a number of {value.bit_length()} bits")
    return [float(value) for value in layer]


def _read_placements(placements: Any, num_layers: int, num_experts: int) -> tuple[Placement, ...] | None:
    if placements is None:
        return None
    layers: list[Any] = placements if isinstance(placements, list) else [placements]
    if len(layers) != num_layers:
        raise ParseError(
            f"'placements' holds the plans of {len(layers)} layers, but 'load' the load of {num_layers}: give one a "
            "layer, or leave 'placements' out"
        )
    return tuple(Placement(num_experts, _ranks(layer)) for layer in layers)


def _ranks(layer: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(layer, list) or not all(isinstance(experts, list) for experts in layer):
        raise ParseError(
            f"the placement of a layer is {_short(layer)}, but it needs a list of the experts of each rank, for "
            "instance [[0, 1], [2, 3]]"
        )
    return tuple(tuple(experts) for experts in layer)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
