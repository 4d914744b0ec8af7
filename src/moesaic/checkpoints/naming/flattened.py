"""Flattened: all experts of a layer above each other in the rows of one matrix (DBRX)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from typing_extensions import override

from moesaic.checkpoints.configuration import configured_experts
from moesaic.checkpoints.files import OpenFiles
from moesaic.checkpoints.naming.base import Arrangement, Naming, Piece, TensorNames
from moesaic.errors import CheckpointError


@final
@dataclass(frozen=True)
class Flattened(Naming):
    """`parent.{gate}`, `parent.{up}` and `parent.{down}`, each `[E * I, H]`; down is used as it stands, so transposed.

    The tensors do not tell E: the configuration has to.
    """

    parent: str
    gate: str
    up: str
    down: str

    @override
    def block(self, name: str) -> str | None:
        found = re.fullmatch(rf"((?:.*\.)?{self.parent})\.(?:{self.gate}|{self.up}|{self.down})", name)
        return found and found[1]

    @override
    def suits(self, config: Mapping[str, Any]) -> bool:
        return True

    @override
    def num_experts(self, block: str, files: OpenFiles, config: Mapping[str, Any]) -> int:
        found = configured_experts(config)
        if found is None:
            raise CheckpointError(
                f"{files.files.directory}/config.json does not say the number of experts, which {block}.{self.up} "
                f"{files.shape(f'{block}.{self.up}')} alone does not tell: add moe_num_experts"
            )
        return found

    @override
    def arrangement(self, block: str, files: OpenFiles) -> Arrangement:
        return Arrangement(gated=True)

    @override
    def written(self, *, gated: bool) -> Arrangement:
        if not gated:
            raise CheckpointError(f"{self!r} has a gate, but the weights have none")
        return Arrangement(gated)

    @override
    def pieces(self, block: str, expert: int, num_experts: int, arrangement: Arrangement) -> tuple[Piece, ...]:
        def piece(name: str, projection: Literal["gate_up", "down"], start: int = 0) -> Piece:
            names = TensorNames(f"{block}.{name}", bare=True)
            down = projection == "down"
            return Piece(names, projection, start, expert=expert, flattened=num_experts, transposed=down, biased=False)

        return piece(self.gate, "gate_up"), piece(self.up, "gate_up", 1), piece(self.down, "down")
