"""ExpertLoad: counts that a recorder read, and the two forms in which they leave the program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from moesaic.checks import instance
from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError

METRIC = "moesaic_expert_tokens_total"
"""The name of the counter."""

LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
"""What Prometheus takes as the name of a label."""


@final
@dataclass(frozen=True, eq=False)
class ExpertLoad:
    """`counts [layers, E]` int64 in main memory: the (token, slot) pairs that each logical expert got."""

    counts: Int[Tensor, "layers E"]

    def __post_init__(self) -> None:
        counts = self.counts
        instance("ExpertLoad", "counts", counts, Tensor, DispatchError, example="recorder.read().counts")
        if counts.ndim != 2 or counts.dtype != torch.int64 or counts.device.type != "cpu":
            raise DispatchError(
                f"the counts are {counts.dtype} of shape {tuple(counts.shape)} on {counts.device}, but they need to be "
                "int64 of shape [layers, E] in main memory"
            )

    def since(self, before: ExpertLoad) -> ExpertLoad:
        """What came after `before`, an earlier reading of the same recorder."""
        instance("since", "before", before, ExpertLoad, DispatchError, example="recorder.read()")
        if before.counts.shape != self.counts.shape:
            raise DispatchError(
                f"the earlier load is of {tuple(before.counts.shape)} layers and experts, but this one is of "
                f"{tuple(self.counts.shape)}: give a reading of the same recorder"
            )
        grown = self.counts - before.counts
        if grown.numel() and grown.min() < 0:
            raise DispatchError(
                f"the load shrank by up to {-int(grown.min())} tokens an expert, but a recorder's counts only grow: "
                "give an earlier reading of the same recorder"
            )
        return ExpertLoad(grown)

    def json(self, placements: Iterable[Placement] | None = None) -> str:
        """What `moesaic balance LOAD.json` reads; with `placements`, one a layer, it plans few moves from those."""
        document: dict[str, object] = {"load": self.counts.tolist()}
        if placements is not None:
            document["placements"] = [placement.experts for placement in self._checked(placements)]
        return json.dumps(document)

    def prometheus(self, labels: Mapping[str, object] | None = None) -> str:
        """The counts as a counter in Prometheus' text format 0.0.4, with `labels` (the rank, for instance) on each.

        Raises DispatchError for a label that is called otherwise than Prometheus allows, or "layer" or "expert".
        """
        instance("prometheus", "labels", labels or {}, Mapping, DispatchError, example='{"rank": "0"}')
        wrong = [name for name in labels or {} if not LABEL.fullmatch(str(name)) or name in {"layer", "expert"}]
        if wrong:
            raise DispatchError(
                f"a label is called {wrong[0]!r}, but it needs letters, digits and _ (not two of these first), and "
                "layer and expert are taken"
            )
        further = "".join(f',{name}="{_escaped(str(value))}"' for name, value in (labels or {}).items())
        return "\n".join([*self._lines(further), ""])

    def _lines(self, further: str) -> Iterator[str]:
        yield f"# HELP {METRIC} Tokens that were routed to each expert, a token counting once for each of its slots."
        yield f"# TYPE {METRIC} counter"
        for layer, row in enumerate(self.counts.tolist()):
            for expert, count in enumerate(row):
                yield f'{METRIC}{{layer="{layer}",expert="{expert}"{further}}} {count}'

    def _checked(self, placements: Iterable[Placement]) -> tuple[Placement, ...]:
        instance("json", "placements", placements, Iterable, DispatchError, example="[Placement.contiguous(8, 2)]")
        each = tuple(placements)
        for placement in each:
            instance("json", "placement", placement, Placement, DispatchError, example="Placement.contiguous(8, 2)")
        layers, experts = self.counts.shape
        found = [placement.num_experts for placement in each]
        if found != [experts] * layers:
            raise DispatchError(
                f"the placements are of {found} experts, but the load has {layers} layers of {experts}: give one a "
                "layer"
            )
        return each


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
