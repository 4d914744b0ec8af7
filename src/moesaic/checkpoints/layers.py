"""ExpertLayer: one layer with experts in a checkpoint, found by the names of its tensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from moesaic.checkpoints.files import TensorFiles
from moesaic.checkpoints.naming import Naming
from moesaic.errors import CheckpointError

PLACE = re.compile(r"((?:.*?\.)?(?:layers|layer|blocks|block|h))\.(\d+)\.")
"""The stack of layers and the number of a layer in it."""


@final
@dataclass(frozen=True)
class ExpertLayer:
    """`name` is what the names of its tensors begin with: `model.layers.3.mlp.experts`."""

    name: str
    naming: Naming

    @property
    def stack(self) -> str:
        """What its layers are in: `model.layers`, `mtp.layers`; empty if the name has no number."""
        found = PLACE.match(self.name)
        return found[1] if found else ""

    @property
    def number(self) -> int | None:
        """Its number in the stack."""
        found = PLACE.match(self.name)
        return int(found[2]) if found else None


def find_layers(files: TensorFiles, config: Mapping[str, Any], namings: Iterable[Naming]) -> tuple[ExpertLayer, ...]:
    """Every layer with experts, by stack and number."""
    suiting = [naming for naming in namings if naming.suits(config)]
    found: dict[str, Naming] = {}
    for name in files.names:
        for naming in suiting:
            block = naming.block(name)
            if block is not None:
                found.setdefault(block, naming)
                break
    layers = (ExpertLayer(name, naming) for name, naming in found.items())
    return tuple(sorted(layers, key=lambda layer: (layer.stack, layer.number or 0, layer.name)))


def main_stack(layers: Sequence[ExpertLayer]) -> str | None:
    """The stack with most layers; None if two have equally many."""
    counted = Counter(layer.stack for layer in layers).most_common(2)
    return None if len(counted) > 1 and counted[0][1] == counted[1][1] else counted[0][0]


def layer_named(layers: Sequence[ExpertLayer], asked: int | str, where: object) -> ExpertLayer:
    """The layer of that name, or of that number in the main stack. Raises CheckpointError listing those there are."""
    if isinstance(asked, str):
        found = [layer for layer in layers if layer.name == asked]
    else:
        found = [
            layer for layer in layers if layer.number == asked and layer.stack == (main_stack(layers) or layer.stack)
        ]
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"{where} has {len(found)} layers with experts of number {asked}: give one of the names "
            f"{', '.join(layer.name for layer in found)}"
        )
    raise CheckpointError(f"{where} has no experts in layer {asked!r}: those with experts are {_listed(layers)}")


def _listed(layers: Sequence[ExpertLayer]) -> str:
    """The numbers of the main stack as ranges, and the names of all other layers."""
    stack = main_stack(layers)
    numbers = sorted({layer.number for layer in layers if layer.stack == stack and layer.number is not None})
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    ranges = [str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join([*ranges, *(layer.name for layer in layers if layer.stack != stack or layer.number is None)])
