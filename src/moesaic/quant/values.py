"""The float32 values that a format quantizes, refused where they cannot be stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moesaic.errors import FormatError


def matrix_values(values: Tensor, name: str) -> Tensor:
    """`values` in float32, without gradient. Raises FormatError unless they are matrices of numbers that it holds."""
    if values.ndim < 2 or not values.is_floating_point():
        raise FormatError(
            f"{name} is {values.dtype} of shape {tuple(values.shape)}, but what is quantized is floating-point and has "
            "rows and columns, `[..., rows, columns]`"
        )
    refuse_nonfinite(values.detach(), name)
    return values.detach().to(torch.float32)


def refuse_nonfinite(values: Tensor, name: str) -> None:
    """Raise FormatError with the index of the first value that is NaN, infinite or too large for float32."""
    held = values.to(torch.float32) if values.dtype == torch.float64 else values  # no copy of narrower values
    finite = held.isfinite()
    if bool(finite.all()):
        return
    index: list[int] = (~finite).nonzero()[0].tolist()
    value = values[tuple(index)].item()
    if math.isfinite(value):
        raise FormatError(
            f"{name}{index} is {value:.6g}, but only numbers that float32 holds can be quantized, up to "
            f"{torch.finfo(torch.float32).max:.6g}: scale the values down first"
        )
    raise FormatError(
        f"{name}{index} is {value}, but only numbers that float32 holds can be quantized: a NaN or an infinity would "
        "silently become something else"
    )


def packed_columns(shape: tuple[int, ...], owner: str) -> tuple[int, ...]:
    """The shape of bytes that hold two values each. Raises FormatError if the columns are odd."""
    if shape[-1] % 2:
        raise FormatError(
            f"{owner} stores two values in a byte, but a row has {shape[-1]}: half a byte would have no owner, and the "
            "bytes alone would not tell the width; fill the rows up to an even width, or choose a format of 8 bits"
        )
    return (*shape[:-1], shape[-1] // 2)
