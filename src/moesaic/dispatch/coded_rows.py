"""codes_and_scales: rows as FP8, without a value that is read on the host, so that a CUDA graph can hold it."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from moesaic.quant import FP8, e4m3
from moesaic.quant.scales import float_scale


def codes_and_scales(rows: Float[Tensor, "R H"], fp8: FP8) -> tuple[UInt8[Tensor, "R H"], Float[Tensor, "R groups"]]:
    """The bytes of the E4M3 codes and their scales, bit for bit those of `fp8.quantize` where all is finite.

    A value that is not finite takes part in no scale, as in `Format.round_trip`, and becomes NaN: E4M3 has no infinity.
    """
    values = rows.float()
    finite = values.isfinite()
    scales = float_scale(fp8.granularity.largest(values.where(finite, 0)), e4m3.LARGEST, torch.float32, "tokens")
    codes = e4m3.encode((values / fp8.granularity.spread(scales, tuple(values.shape))).where(finite, torch.nan))
    return codes.view(torch.uint8), scales
