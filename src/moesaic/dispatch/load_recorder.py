"""LoadRecorder: what each expert gets, counted where the tokens are and read on the host only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from moesaic.checks import instance, whole_number
from moesaic.dispatch.agreement import agree
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.devices import reachable
from moesaic.dispatch.expert_load import ExpertLoad
from moesaic.errors import DispatchError

FEW = 1024
"""Ids that are counted with one operator less. On a CPU a search of 33 edges takes 25 ns an id, an operator 15 us."""


@final
class LoadRecorder:
    """Counts of (token, slot) pairs for each logical expert of each layer, of this rank's tokens, on `device`.

    The counts only grow; `ExpertLoad.since` takes the load between two readings. A call of `record` is one launch on
    CUDA, and where there is no Triton two operators up to `FEW` ids (bucketize, scatter_add) and three beyond (clamp,
    add, index_add). The host waits for none of them, so it can be captured in a CUDA graph, whose replays count, and
    compiled into one. A recorder belongs to one thread on a CPU; on CUDA any number of streams may count at once.
    """

    def __init__(self, num_layers: int, num_experts: int, device: torch.device | str = "cpu") -> None:
        self.num_layers = whole_number("LoadRecorder", "num_layers", num_layers, DispatchError)
        self.num_experts = whole_number("LoadRecorder", "num_experts", num_experts, DispatchError)
        # A bin more on either side takes ids outside [0, E), so that no call needs a mask.
        size = self.num_experts + 2
        device = reachable("LoadRecorder", device)
        with torch.inference_mode(mode=False):  # a tensor made in it could not be counted in outside of it
            every = range(self.num_layers)
            self._bins = tuple(torch.zeros(size, dtype=torch.int64, device=device) for _ in every)
            self._one = torch.ones(1, dtype=torch.int64, device=device)
            self._ones = torch.ones(FEW, dtype=torch.int64, device=device)
            edges = torch.arange(self.num_experts + 1, device=device)
        self._edges = {torch.int32: edges.int(), torch.int64: edges}
        self.device = edges.device  # where it counts
        self._launch = _one_launch(self.device)

    def __repr__(self) -> str:
        return f"LoadRecorder({self.num_layers}, {self.num_experts}, {str(self.device)!r})"

    def record(self, layer: int, topk_ids: Int[Tensor, "T K"]) -> None:
        """Count the ids of a call of `layer`, which counts from 0; an id outside `[0, E)` is an inactive slot.

        Raises DispatchError for a layer that is none, and for ids on another device or of another dtype than int32 and
        int64.
        """
        # Between two layers all of this is cold: each operator costs 10 us there, len(ids) in place of numel() another.
        counts, edges = self.checked(layer, topk_ids)
        number = topk_ids.numel()
        if self._launch is not None:
            self._launch(topk_ids.flatten(), counts, self.num_experts)
        elif number <= FEW:
            # How many of 0, 1 to E are not above the id: 0 for one below them, E + 1 for one above, else the id plus 1.
            bins = torch.bucketize(topk_ids.flatten(), edges, right=True)
            counts.scatter_add_(0, bins, self._ones)
        else:
            bins = topk_ids.flatten().clamp(-1, self.num_experts).add_(1)
            counts.index_add_(0, bins, self._one.expand(number))

    def checked(self, layer: int, topk_ids: Int[Tensor, "T K"]) -> tuple[Int[Tensor, " E_and_2"], Int[Tensor, " _"]]:
        """Bins and edges by which `record` counts these ids, and counts nothing. Raises what it raises."""
        counts = self.bins(layer)
        instance("record", "topk_ids", topk_ids, Tensor, DispatchError, example="routing.topk_ids")
        if topk_ids.device != self.device:
            raise DispatchError(
                f"the ids are on {topk_ids.device}, but {self!r} counts on {self.device}: make it there"
            )
        edges = self._edges.get(topk_ids.dtype)
        if edges is None:
            raise DispatchError(f"the ids are {topk_ids.dtype}, but a recorder counts torch.int32 or torch.int64")
        return counts, edges

    def bins(self, layer: int) -> Int[Tensor, " E_and_2"]:
        """int64, for a kernel that counts by itself: where it adds to `layer`, 1 at e + 1 for each slot of expert e.

        The first and the last are nobody's. Raises DispatchError for a layer that is none.
        """
        if isinstance(layer, bool) or not isinstance(layer, int):
            layer = whole_number("record", "layer", layer, DispatchError, at_least=0)
        if not 0 <= layer < self.num_layers:
            raise DispatchError(f"layer {layer} of {self.num_layers}: layers of a recorder count from 0")
        return self._bins[layer]

    def read(self) -> ExpertLoad:
        """The counts up to now; waits for the device."""
        return ExpertLoad(self._counts().cpu())

    def read_all(self, ranks: Ranks) -> ExpertLoad:
        """The sum over all ranks, the same on each; all of them call this at the same point of the program.

        Raises DispatchError, the same on all ranks, if their recorders are of different sizes.
        """
        instance("read_all", "ranks", ranks, Ranks, DispatchError, example="Ranks.world()")
        sizes = {"layers of the recorder": str(self.num_layers), "experts": str(self.num_experts)}
        agree(ranks, sizes, owner="LoadRecorder.read_all")
        mine = self._counts().to(ranks.device)
        return ExpertLoad(ranks.all_gather(mine, "LoadRecorder.read_all, the counts").sum(0).cpu())

    def _counts(self) -> Int[Tensor, "layers E"]:
        return torch.stack(self._bins)[:, 1:-1].contiguous()


def _one_launch(device: torch.device) -> Callable[[Tensor, Tensor, int], None] | None:
    """What counts ids into bins in one launch on `device`, if it is a GPU and there is Triton."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from moesaic.kernels.count_ids import count_as_operator, count_ids  # noqa: PLC0415

    def count(ids: Tensor, bins: Tensor, num_experts: int) -> None:
        (count_as_operator if torch.compiler.is_compiling() else count_ids)(ids, bins, num_experts)

    return count
