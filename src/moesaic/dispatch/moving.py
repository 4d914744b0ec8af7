"""move_experts: the weights of a layer travel to where a new placement wants them, chunk by chunk, each one checked.

Dimensions: L experts that this rank holds, M that it will hold. A message is a chunk and its checksum, 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import UInt8
from torch import Tensor

from moesaic.dispatch.checksum import checksum
from moesaic.dispatch.collectives import Ranks
from moesaic.dispatch.expert_bytes import ExpertBytes
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.transfers import rounds, transfers
from moesaic.errors import DispatchError

Progress: TypeAlias = Callable[[int, int], None]
"""Called after each step with how many are done, and of how many; the same numbers on all ranks."""

Guard: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Given the name of a step: what its work is done in, `all_or_none` of the ranks."""


@final
@dataclass(frozen=True)
class Chunk:
    """The bytes from `start` to `stop` of an expert, from rank `source` of the placements to rank `target`."""

    expert: int
    source: int
    target: int
    start: int
    stop: int

    @property
    def place(self) -> int:
        """Of its first word among those of all experts, each with room for 2^40: the checksum counts from there."""
        return (self.expert << 40) + self.start // 8


@final
@dataclass(frozen=True, eq=False)
class Relocation:
    """What one rank has (`held`: tensors `[L, ...]`) and what it fills (`wanted`: `[M, ...]`, contiguous).

    With `shards` S rank r has its part of what the placements give to r // S, and ranks with the same part exchange.
    """

    ranks: Ranks
    shards: int
    before: Placement
    after: Placement
    held: Sequence[Tensor]
    wanted: Sequence[Tensor]
    chunk_bytes: int

    @property
    def share(self) -> int:
        """The rank of the placements that this one is, or is a part of."""
        return self.ranks.rank // self.shards

    def keep(self) -> None:
        """Copy the experts that stay on this rank."""
        old, new = self.before.experts[self.share], self.after.experts[self.share]
        for local, expert in enumerate(new):
            if expert in old:
                for source, target in zip(self.held, self.wanted, strict=True):
                    target[local] = source[old.index(expert)].detach()

    def run(self, guard: Guard, progress: Progress | None) -> None:
        """Move the others. In one step a rank sends at most one chunk and gets at most one."""
        steps = self._steps()
        with guard("the first chunk"):
            sent = self._packed(steps[0]) if steps else []
        for number, step in enumerate(steps, 1):
            arriving = [chunk for chunk in step if chunk.target == self.share]
            got = [(self._room(chunk), self._peer(chunk.source)) for chunk in arriving]
            self.ranks.point_to_point(sent, got, f"rebalance, chunk {number} of {len(steps)}")
            with guard(f"chunk {number} of {len(steps)}"):
                for (message, _), chunk in zip(got, arriving, strict=True):
                    self._put(message, chunk)
                sent = self._packed(steps[number]) if number < len(steps) else []
            if progress is not None:
                with guard(f"the caller's progress after chunk {number} of {len(steps)}"):
                    progress(number, len(steps))

    def _steps(self) -> list[list[Chunk]]:
        size = ExpertBytes.of(self.held, 0).num_bytes
        starts = range(0, size, self.chunk_bytes)
        return [
            [Chunk(m.expert, m.source, m.target, start, min(start + self.chunk_bytes, size)) for m in together]
            for together in rounds(transfers(self.before, self.after))
            for start in starts
        ]

    def _peer(self, share: int) -> int:
        return share * self.shards + self.ranks.rank % self.shards

    def _room(self, chunk: Chunk) -> UInt8[Tensor, " B"]:
        return torch.empty(chunk.stop - chunk.start + 8, dtype=torch.uint8, device=self.ranks.device)

    def _packed(self, step: Sequence[Chunk]) -> list[tuple[Tensor, int]]:
        """The message of this rank in `step`, if it has one, and whom it goes to."""
        old = self.before.experts[self.share]
        found: list[tuple[Tensor, int]] = []
        for chunk in step:
            if chunk.source == self.share:
                values = ExpertBytes.of(self.held, old.index(chunk.expert)).read(chunk.start, chunk.stop)
                message = torch.cat([values, checksum(values, chunk.place).view(torch.uint8)])
                found.append((message.to(self.ranks.device), self._peer(chunk.target)))
        return found

    def _put(self, message: UInt8[Tensor, " B"], chunk: Chunk) -> None:
        """Write what arrived to its place, and check what stands there then."""
        new = self.after.experts[self.share]
        own = ExpertBytes.of(self.wanted, new.index(chunk.expert))
        own.write(chunk.start, message[:-8])
        found = checksum(own.read(chunk.start, chunk.stop), chunk.place).view(torch.uint8)
        if not torch.equal(found.to(message.device), message[-8:]):
            raise DispatchError(
                f"bytes {chunk.start} to {chunk.stop} of expert {chunk.expert} are not those that rank "
                f"{self._peer(chunk.source)} "
                "sent (their checksum differs)"
            )
