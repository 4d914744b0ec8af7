"""Stacked: one tensor for all experts of a layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.checkpoints.configuration import model_types
from moesaic.checkpoints.files import OpenFiles
from moesaic.checkpoints.naming.base import Arrangement, Naming, Piece, TensorNames
from moesaic.errors import CheckpointError


@final
@dataclass(frozen=True)
class Stacked(Naming):
    """`parent.{first}` `[E, 2I, H]` and `parent.{down}` `[E, H, I]`, or both with rows and columns exchanged.

    `parent` is a regular expression. `first` is one name, gate above up or `interleaved`, or two (gate, up).
    `transposed` None: their shapes tell, since columns of gate_up are rows of down in one of the two only.
    `separator`, `bare`: see TensorNames. `biased`: a bias may stand beside each. `norm_name`: the weight of the output
    norm under `parent`. `of_models`: the model types that alone are named so; of all if empty.
    """

    parent: str
    first: tuple[str, ...]
    down: str
    separator: str = "."
    bare: bool = False
    transposed: bool | None = False
    interleaved: bool = False
    biased: bool = False
    norm_name: str | None = None
    of_models: frozenset[str] = frozenset()

    @override
    def block(self, name: str) -> str | None:
        suffix = rf"(?:{re.escape(self.separator)}.+){'?' if self.bare else ''}"
        stems = "|".join((*self.first, self.down))
        found = re.fullmatch(rf"((?:.*\.)?(?:{self.parent}))\.(?:{stems}){suffix}", name)
        return found and found[1]

    @override
    def suits(self, config: Mapping[str, Any]) -> bool:
        return not self.of_models or not self.of_models.isdisjoint(model_types(config))

    @override
    def num_experts(self, block: str, files: OpenFiles, config: Mapping[str, Any]) -> int:
        name = next((n for n in files.files.under(f"{block}.{self.down}") if self.block(n) == block), None)
        if name is None:
            raise CheckpointError(f"{files.files.directory} has {block}.{self.first[0]}, but no {block}.{self.down}")
        shape = files.shape(name)
        return shape[0] if shape else 0

    @override
    def arrangement(self, block: str, files: OpenFiles) -> Arrangement:
        names = [f"{block}.{name}" for name in (*self.first, self.down)]
        if self.transposed is not None or not any(name in files.files.where for name in names):
            return Arrangement(gated=True, transposed=self.transposed or False)
        first, down = (files.shape(name)[1:] for name in names)
        rows = (first, down) == ((2 * down[-1], down[0]), down)
        columns = (first, down) == ((down[-1], 2 * down[0]), down)
        if not (rows or columns):
            raise CheckpointError(
                f"{files.file(names[0])}: the experts of {names[0]} are {first} and those of {names[1]} {down}, but "
                "they need [2I, H] and [H, I], or [H, 2I] and [I, H]"
            )
        return Arrangement(gated=True, transposed=columns)

    @override
    def written(self, *, gated: bool) -> Arrangement:
        if not gated:
            raise CheckpointError(f"{self!r} has a gate, but the weights have none")
        return Arrangement(gated, self.transposed or False)

    @override
    def pieces(self, block: str, expert: int, num_experts: int, arrangement: Arrangement) -> tuple[Piece, ...]:
        def piece(name: str, projection: Any, start: int = 0, count: int = 1) -> Piece:
            return Piece(
                TensorNames(f"{block}.{name}", self.separator, self.bare),
                projection,
                start,
                count,
                expert=expert,
                transposed=arrangement.transposed,
                interleaved=self.interleaved and count > 1,
                biased=self.biased,
            )

        count = 2 // len(self.first)
        first = (piece(name, "gate_up", part, count) for part, name in enumerate(self.first))
        return (*first, piece(self.down, "down"))

    @override
    def norm(self, block: str) -> str | None:
        return self.norm_name and f"{block}.{self.norm_name}"
