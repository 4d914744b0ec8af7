"""PeerWindow: memory of each rank into which every other rank of the host writes, and how far each has come.

No triton is loaded here: a window is opened before any kernel is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from moesaic.kernels.exchange_plan import ExchangePlan

ALIGNMENT = 16
"""Bytes, of which a row and each of its parts begin at a multiple."""


@final
@dataclass(frozen=True, eq=False)
class PeerWindow:
    """The window of `rank`, which holds `max_tokens` M rows of `row_bytes` bytes from each of N ranks, twice.

    Twice, since a rank may begin the next exchange while another still reads what came in this one; to the one after
    that it comes only when all have read. `memory` uint8: flags `[2, N, S]` int64 of the plan's S stripes, then the
    rows `[2, N, M, row_bytes]`. `addresses` int64 `[N]`: where the memory of each rank begins, as this rank sees it.
    `epochs` int64 `[2 S]`: the exchanges that each program has made, counted on the device, so that a CUDA graph can be
    replayed. `polls`: how often a program looks for another rank, about a microsecond each, before it gives up. `plan`:
    of every exchange through the window, so that all programs count alike. `handle`: what keeps the peers' memory
    mapped.
    """

    memory: Tensor
    addresses: Tensor
    epochs: Tensor
    rank: int
    max_tokens: int
    row_bytes: int
    polls: int
    plan: ExchangePlan
    handle: Any = None

    def __repr__(self) -> str:
        return (
            f"PeerWindow({self.rank} of {self.num_ranks} on {self.memory.device}, max_tokens={self.max_tokens}, "
            f"row_bytes={self.row_bytes})"
        )

    def __deepcopy__(self, memo: object) -> PeerWindow:
        return self  # a copy of a layer writes into the same memory

    @property
    def num_ranks(self) -> int:
        """N."""
        return len(self.addresses)

    @property
    def rows_at(self) -> int:
        """The byte at which the rows begin."""
        return rows_at(self.num_ranks, self.plan)

    @classmethod
    def over(
        cls,
        memory: Tensor,
        addresses: Tensor,
        rank: int,
        sizes: tuple[int, int, int],
        plan: ExchangePlan,
        handle: Any = None,
    ) -> PeerWindow:
        """The window of `rank` in zeroed `memory`; `sizes`: max_tokens, row_bytes, polls."""
        max_tokens, row_bytes, polls = sizes
        epochs = torch.zeros(plan.programs, dtype=torch.int64, device=memory.device)
        return cls(memory, addresses, epochs, rank, max_tokens, row_bytes, polls, plan, handle)


def rows_at(num_ranks: int, plan: ExchangePlan) -> int:
    """Bytes of the flags, rounded up to a line."""
    return -(-2 * num_ranks * plan.stripes * 8 // 128) * 128


def window_bytes(num_ranks: int, max_tokens: int, row_bytes: int, plan: ExchangePlan) -> int:
    """What each rank sets aside: 68 MB for 4096 tokens of 2048 bfloat16 on 2 ranks, 944 MB for 7168 of them on 8."""
    return rows_at(num_ranks, plan) + 2 * num_ranks * max_tokens * row_bytes


def row_starts(hidden_size: int, top_k: int, itemsize: int, *, coded: bool) -> tuple[int, int, int, int]:
    """The bytes of a token's row at which its scales, ids and weights begin, and at which it ends.

    `coded`: hidden states are FP8 codes with a scale for 128 columns; else there are no scales.
    """
    scales = aligned(hidden_size * (1 if coded else itemsize))
    ids = scales + (aligned(4 * -(-hidden_size // 128)) if coded else 0)
    weights = ids + aligned(4 * top_k)
    return scales, ids, weights, weights + aligned(4 * top_k)


def aligned(size: int) -> int:
    """`size` bytes, rounded up to where the next part of a row may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT
