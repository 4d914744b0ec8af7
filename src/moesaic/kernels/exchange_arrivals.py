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


def launch_options(hidden: int, device: torch.device) -> dict[str, Any]:
    """How an exchange of rows of `hidden` elements is launched; on a GPU a rank that is not heard from ends it."""
    columns = min(MOST_COLUMNS, triton.next_power_of_2(hidden))
    warps = 8 if columns >= 2048 else 4
    overlap = overlap_launches(device)
    on_card = {"debug": True, "sanitize_overflow": False} if device.type == "cuda" else {}
    overlapped = {"launch_pdl": True} if overlap else {}
    return {"BLOCK": columns, "LANES": 32 * warps, "OVERLAP": overlap, "num_warps": warps, **on_card, **overlapped}
