"""A format that is not of the package: two values in one element, and a scale per matrix."""

from dataclasses import dataclass
from typing import final

import torch

from moesaic import Format, Quantized, StoredTensor


@final
@dataclass(frozen=True)
class Halved(Format):
    """Pairs along the last dimension stand as the parts of a complex number, divided by the scale of their matrix.

    An odd last dimension is stored with a zero, so the imaginary part of the last element is NaN to mark it.
    """

    @property
    def scale_names(self) -> tuple[str, ...]:
        return ("scale",)

    def storage(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, StoredTensor]:
        return {
            "data": StoredTensor(torch.complex64, (*shape[:-1], -(-shape[-1] // 2))),
            "scale": StoredTensor(torch.float32, (*shape[:-2], 1, 1)),
        }

    def logical_shape(self, data: torch.Tensor) -> tuple[int, ...]:
        odd = bool(torch.isnan(data.imag).any())
        return (*data.shape[:-1], 2 * data.shape[-1] - odd)

    def quantize(self, values: torch.Tensor, *, name: str = "tensor") -> Quantized:
        filled = values if values.shape[-1] % 2 == 0 else torch.nn.functional.pad(values, (0, 1), value=float("nan"))
        data = torch.complex(filled[..., 0::2].float(), filled[..., 1::2].float()) / 2
        return Quantized(self, data, {"scale": torch.full((*values.shape[:-2], 1, 1), 2.0)})

    def dequantize(self, stored: Quantized, dtype: torch.dtype) -> torch.Tensor:
        whole = torch.view_as_real(stored.data.contiguous()).flatten(-2)[..., : stored.shape[-1]]
        return (whole * stored.scales["scale"]).to(dtype)
