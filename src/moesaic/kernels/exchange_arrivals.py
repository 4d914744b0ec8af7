"""Arrivals: what an exchange of tokens fills and an exchange of sums reads; and how both are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
import triton
from torch import Tensor

from moesaic.kernels.launching import overlap_launches

MOST_COLUMNS = 8192
"""Elements of a row that a program holds at once."""

MOST_CODED = 4096
"""As many that it also rounds: 75 registers a thread on sm_90, where 8192 take 126, and 32 without rounding."""


@final
@dataclass(frozen=True, eq=False)
class Arrivals:
    """What an exchange fills. `rows [M * N, H]` with rows of a multiple of 16 bytes, `ids`, `weights [M * N, K]`.

    `homes [T, K]`: the share that computes each pair of this rank's tokens, -1 for none. `lengths [N]`: tokens of each
    rank. `num_valid ()`: from this row on there are none.
    """

    rows: Tensor
    ids: Tensor
    weights: Tensor
    homes: Tensor
    lengths: Tensor
    num_valid: Tensor


def launch_options(hidden: int, device: torch.device, *, coded: bool = False) -> dict[str, Any]:
    """How an exchange of rows of `hidden` elements is launched, whole groups of 128 where they are `coded`.

    On a GPU a rank that is not heard from ends it.
    """
    columns = triton.next_power_of_2(hidden)
    columns = min(MOST_CODED, max(columns, 128)) if coded else min(MOST_COLUMNS, columns)
    warps = 8 if columns >= 2048 else 4
    overlap = overlap_launches(device)
    on_card = {"debug": True, "sanitize_overflow": False} if device.type == "cuda" else {}
    overlapped = {"launch_pdl": True} if overlap else {}
    return {"BLOCK": columns, "LANES": 32 * warps, "OVERLAP": overlap, "num_warps": warps, **on_card, **overlapped}
