"""The norm that a few models apply to each expert's output before the router weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from moesaic.checks import finite_number
from moesaic.errors import ProblemError


@final
@dataclass(frozen=True)
class OutputNorm:
    """`v / sqrt(mean(v^2) + eps)` with `v = scale * row`, over H; the scale is `ExpertWeights.output_scale`.

    The scale comes before the norm, unlike RMSNorm's. Source: transformers `MuseSparkTextInputScaledRMSNorm`,
    whose scale is one plus the stored weight.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        eps = finite_number("OutputNorm", "eps", self.eps, ProblemError)
        if eps < 0:
            raise ProblemError(f"OutputNorm.eps is {eps}, but it needs a number of at least 0")
        object.__setattr__(self, "eps", eps)

    def __call__(self, rows: Float[Tensor, "*rows H"], scale: Float[Tensor, " H"]) -> Float[Tensor, "*rows H"]:
        """The normed rows, in the dtype of `rows` (give float32)."""
        scaled = rows * scale.to(rows.dtype)
        return scaled * torch.rsqrt(scaled.pow(2).mean(-1, keepdim=True) + self.eps)
