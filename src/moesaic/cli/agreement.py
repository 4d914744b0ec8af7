"""Whether a backend computes what the oracle computes, asked before its time is believed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moesaic.batches import Batch, BatchedBatch, GroupedBatch

ALLOWED: tuple[tuple[torch.dtype, float], ...] = (
    (torch.bfloat16, 2e-2),
    (torch.float16, 4e-3),
    (torch.float32, 1e-4),
    (torch.float64, 1e-10),
)
"""The highest root mean square of the error, as a share of the oracle's standard deviation."""


def disagreement(subject: Callable[[Batch], Tensor], oracle: Callable[[Batch], Tensor], batch: Batch) -> float:
    """Root mean square of the error over the rows that are defined, as a share of the oracle's own."""
    defined = defined_rows(batch)
    wanted = oracle(batch)[defined].double()
    error = subject(batch)[defined].double() - wanted
    return float(error.pow(2).mean().sqrt() / wanted.pow(2).mean().sqrt().clamp_min(1e-30))


def is_allowed(error: float, dtype: torch.dtype) -> bool:
    """False for an error that rounding in `dtype` does not explain, and for NaN."""
    return error <= dict(ALLOWED)[dtype]


def defined_rows(batch: Batch) -> Tensor:
    """True for each row that its layout defines, in the shape of the rows without their columns."""
    position = torch.arange(batch.rows.shape[-2], device=batch.rows.device)
    match batch:
        case BatchedBatch():
            return position < batch.counts.unsqueeze(-1)
        case GroupedBatch():
            starts = batch.offsets.unsqueeze(-1)
            return ((position >= starts) & (position < starts + batch.counts.unsqueeze(-1))).any(dim=0)
        case _:
            return torch.ones_like(position, dtype=torch.bool)
