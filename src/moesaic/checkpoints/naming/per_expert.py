"""PerExpert: each expert has tensors of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from moesaic.checkpoints.files import OpenFiles
from moesaic.checkpoints.naming.base import Arrangement, Naming, Piece, TensorNames


@final
@dataclass(frozen=True)
class PerExpert(Naming):
    """`block.{expert}.gate.weight` and `.up.weight` `[I, H]`, `.down.weight` `[H, I]`; the block ends with `experts`.

    A layer of which no expert has a gate is one of a model without (Nemotron-H).
    """

    gate: str
    up: str
    down: str

    @override
    def block(self, name: str) -> str | None:
        found = re.fullmatch(rf"((?:.*\.)?experts)\.\d+\.(?:{self.gate}|{self.up}|{self.down})\..+", name)
        return found and found[1]

    @override
    def suits(self, config: Mapping[str, Any]) -> bool:
        return True

    @override
    def num_experts(self, block: str, files: OpenFiles, config: Mapping[str, Any]) -> int:
        # LongCat has gates of experts that compute nothing: those with a down projection count.
        down = re.compile(rf"{re.escape(block)}\.(\d+)\.{self.down}\.")
        found = filter(None, map(down.match, files.files.under(f"{block}.")))
        return 1 + max((int(match[1]) for match in found), default=-1)

    @override
    def arrangement(self, block: str, files: OpenFiles) -> Arrangement:
        gates = re.compile(rf"{re.escape(block)}\.\d+\.{self.gate}\.")
        return Arrangement(gated=any(map(gates.match, files.files.under(f"{block}."))))

    @override
    def written(self, *, gated: bool) -> Arrangement:
        return Arrangement(gated)

    @override
    def pieces(self, block: str, expert: int, num_experts: int, arrangement: Arrangement) -> tuple[Piece, ...]:
        first = (self.gate, self.up) if arrangement.gated else (self.up,)
        stem = f"{block}.{expert}"
        return (
            *(Piece(TensorNames(f"{stem}.{name}"), "gate_up", start=part) for part, name in enumerate(first)),
            Piece(TensorNames(f"{stem}.{self.down}"), "down"),
        )
