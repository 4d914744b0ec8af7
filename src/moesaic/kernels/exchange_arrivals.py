"""Arrivals: what an exchange of tokens fills and an exchange of sums reads; and how both are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import triton
from torch import Tensor

from moesaic.kernels.exchange_plan import ExchangePlan
from moesaic.kernels.launching import overlap_launches


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


def launch_options(rows: Tensor, plan: ExchangePlan, *, coded: bool = False) -> dict[str, Any]:
    """How an exchange of such `rows` [.., H] is launched, whole groups of 128 where they are `coded`.

    On a GPU a rank that is not heard from ends it.
    """
    hidden, device = rows.shape[1], rows.device
    # Rounding takes the registers of as many again; float32 is twice as wide, and its sums spilled otherwise.
    most = plan.elements // 2 if coded or rows.element_size() > 2 else plan.elements
    columns = min(most, triton.next_power_of_2(max(hidden, 128) if coded else hidden))
    overlap = overlap_launches(device)
    on_card = {"debug": True, "sanitize_overflow": False} if device.type == "cuda" else {}
    overlapped = {"launch_pdl": True} if overlap else {}
    return {
        "BLOCK": columns,
        "LANES": 32 * plan.warps,
        "OVERLAP": overlap,
        "num_warps": plan.warps,
        "maxnreg": plan.registers,
        **on_card,
        **overlapped,
    }
