"""Scales from the largest magnitude of a tile. A tile of zeros has the scale 1, so that no division gives NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from moesaic.errors import FormatError

FLOAT_SCALES: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes in which checkpoints hold scales that are not powers of two."""

_SMALLEST = {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24}
"""The least scale, above zero. Float16 uses its subnormals, as float16 checkpoints do: weights of 1e-4 need them."""


def float_scale(largest: Tensor, top: float, dtype: torch.dtype, name: str) -> Tensor:
    """`largest / top` in float32, rounded to `dtype`; never zero. Raises FormatError where float16 overflows."""
    wanted = _over(largest, top)
    scale = wanted.to(dtype).clamp(min=_SMALLEST[dtype])
    if dtype == torch.float16 and bool(scale.isinf().any()):
        raise FormatError(
            f"{name} needs a scale of {wanted.max().item():.6g}, but float16 ends at 65504: choose scale=torch.float32"
        )
    return scale.where(largest > 0, torch.ones_like(scale))


def power_above(largest: Tensor, top: float) -> Tensor:
    """The least power of two of at least `largest / top`, as float8_e8m0fnu: nothing saturates (DeepGEMM's ue8m0)."""
    mantissa, exponent = torch.frexp(_over(largest, top))  # mantissa in [.5, 1), so .5 marks a power of two
    return _e8m0(exponent - (mantissa == 0.5).to(exponent.dtype), largest)


def power_within(largest: Tensor, top_exponent: int) -> Tensor:
    """`2 ** (floor(log2(largest)) - top_exponent)` as float8_e8m0fnu (OCP Microscaling Formats v1.0, section 6.3)."""
    return _e8m0(torch.frexp(largest).exponent - 1 - top_exponent, largest)


def _over(largest: Tensor, top: float) -> Tensor:
    """`largest / top`, rounded once on every device: by a number, torch multiplies with its reciprocal on CUDA."""
    return largest / largest.new_full((), top)


def _e8m0(exponent: Tensor, largest: Tensor) -> Tensor:
    """The power of two with that exponent; its code is the exponent plus 127, from 0 to 254 (255 is NaN)."""
    code = (exponent.clamp(-127, 127) + 127).to(torch.uint8)
    return code.where(largest > 0, torch.full_like(code, 127)).view(torch.float8_e8m0fnu)
