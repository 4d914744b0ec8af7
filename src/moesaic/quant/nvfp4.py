"""NVFP4: E2M1 values, two in a byte, with an E4M3 scale for 16 neighbours and a float32 scale for each matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.errors import FormatError
from moesaic.quant import e2m1, e4m3
from moesaic.quant.base import Format, Quantized, StoredTensor
from moesaic.quant.granularity import PerGroup, PerTensor
from moesaic.quant.nibbles import pack, unpack
from moesaic.quant.scales import float_scale
from moesaic.quant.values import matrix_values, packed_columns

_GROUP = PerGroup(16)


@final
@dataclass(frozen=True)
class NVFP4(Format):
    """`q * scale * global_scale`, all three multipliers: q one of +-{0, .5, 1, 1.5, 2, 3, 4, 6}.

    Data uint8 `[..., N, K / 2]`, the first of two codes in the low bits; scale float8_e4m3fn
    `[..., N, ceil(K / 16)]`; global_scale float32 `[..., 1, 1]`, one for each matrix, so gate and up of one expert
    may differ (in canonical weights `[L, 2, 1]`). An odd K is refused.

    Quantizing calibrates: global_scale is the largest magnitude of the matrix over 448 * 6, a group's scale is the
    nearest E4M3 number, ties to even, of its largest magnitude over `6 * global_scale`, at least 2^-9; q is the
    nearest of `x / (scale * global_scale)`, ties to the even code. With global_scale 1 weights of sigma .001 would
    all be zero. Source: NVIDIA 2025, arXiv:2509.25149, appendix on NVFP4.
    """

    @classmethod
    def from_modelopt(cls, weight: Tensor, weight_scale: Tensor, weight_scale_2: Tensor) -> Quantized:
        """ModelOpt's three tensors, of which `weight_scale_2` multiplies, as ours does: nothing is changed."""
        return cls._read(weight, weight_scale, weight_scale_2.to(torch.float32), "weight_scale_2")

    @classmethod
    def from_compressed_tensors(
        cls, weight_packed: Tensor, weight_scale: Tensor, weight_global_scale: Tensor
    ) -> Quantized:
        """The three tensors of compressed-tensors, of which `weight_global_scale` divides: its reciprocal is kept."""
        return cls._read(
            weight_packed, weight_scale, 1 / weight_global_scale.to(torch.float32), "1 / weight_global_scale"
        )

    @classmethod
    def _read(cls, data: Tensor, scale: Tensor, global_scale: Tensor, name: str) -> Quantized:
        lead = tuple(data.shape[:-2])
        if global_scale.numel() != torch.Size(lead).numel():
            raise FormatError(
                f"{name} has {global_scale.numel()} numbers, but data of shape {tuple(data.shape)} needs one for each "
                f"matrix, {torch.Size(lead).numel()}"
            )
        if not bool((global_scale.isfinite() & (global_scale > 0)).all()):
            raise FormatError(f"{name} is {global_scale.flatten().tolist()[:8]}, but a scale is finite and above zero")
        return Quantized(cls(), data, {"scale": scale, "global_scale": global_scale.reshape(*lead, 1, 1)})

    @property
    @override
    def scale_names(self) -> tuple[str, ...]:
        return ("scale", "global_scale")

    @override
    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> Mapping[str, StoredTensor]:
        return {
            "data": StoredTensor(torch.uint8, packed_columns(shape, "NVFP4")),
            "scale": StoredTensor(torch.float8_e4m3fn, _GROUP.grid(shape)),
            "global_scale": StoredTensor(torch.float32, (*shape[:-2], 1, 1)),
        }

    @override
    def logical_shape(self, data: Tensor) -> tuple[int, ...]:
        return (*data.shape[:-1], 2 * data.shape[-1])

    @override
    def tiles(self, rows: int, columns: int) -> Mapping[str, tuple[int, int]]:
        return {
            "data": (1, 2),
            "scale": _GROUP.tile(rows, columns),
            "global_scale": PerTensor().tile(rows, columns),
        }

    @override
    def quantize(self, values: Tensor, *, name: str = "tensor") -> Quantized:
        work = matrix_values(values, name)
        packed_columns(tuple(values.shape), f"{name} cannot be packed: NVFP4")
        largest = _GROUP.largest(work)
        global_scale = float_scale(PerTensor().largest(largest), e4m3.LARGEST * e2m1.LARGEST, torch.float32, name)
        scale = (largest / (e2m1.LARGEST * global_scale)).clamp(min=e4m3.SMALLEST)
        scale = e4m3.encode(scale.where(largest > 0, 1.0))
        work = work / _GROUP.spread(scale.to(torch.float32) * global_scale, tuple(work.shape))
        return Quantized(self, pack(e2m1.encode(work)), {"scale": scale, "global_scale": global_scale})

    @override
    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> Tensor:
        work = torch.float64 if dtype == torch.float64 else torch.float32
        scale = _GROUP.spread(stored.scales["scale"].to(work), stored.shape)
        # The first product is exact in float32 (2 + 4 significant bits), so the second is the only rounding.
        exact = e2m1.decode(unpack(stored.data)).to(work) * scale
        return (exact * stored.scales["global_scale"].to(work)).to(dtype)
