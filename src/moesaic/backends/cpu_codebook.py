"""One projection of every expert in 4 bits, for a kernel that looks codes up in a table of their sixteen numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from moesaic.backends.codebook_blocks import canonical_codes, canonical_scales, packed_codes, packed_scales
from moesaic.errors import BackendError
from moesaic.kernels.codebook_form import E2M1, INTEGERS, CodebookForm, ScaleKind
from moesaic.quant import INT4, MXFP4, NVFP4, Format, PerGroup, Quantized

MANY_ROWS = 1024
"""Rows of one expert above which its weight is read back and multiplied by oneDNN. A million weights cost the kernel 6
microseconds a row; reading them back costs 9000, and oneDNN then 4 a row (two Zen 4 cores, exploratory)."""

SCALES: dict[torch.dtype, ScaleKind] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def codebook_form(stored: Format) -> tuple[CodebookForm, int] | None:
    """How the kernel reads weights in the format `stored`, and the columns of a group; None if it does not.

    A group has an even number of columns, because two of them share an instruction; 0 stands for whole rows.
    """
    match stored:
        case INT4(granularity=PerGroup(columns=columns)) if columns % 2:
            return None
        case INT4(granularity=granularity, zero_point=zero_point, scale=scale):
            columns = granularity.columns if isinstance(granularity, PerGroup) else 0
            return CodebookForm(INTEGERS, SCALES[scale], zero_point=zero_point), columns
        case MXFP4():
            return CodebookForm(E2M1, "e8m0"), 32
        case NVFP4():
            return CodebookForm(E2M1, "e4m3", factor=True), 16
        case _:
            return None


@final
@dataclass(frozen=True, eq=False)
class CodebookProjection:
    """`rows @ W_e.T + b_e` for the rows of several experts at once, in float32.

    `codes`: uint8 `[E, B, K / 2, 64]`, in blocks of 64 rows. `scales`: what is stored for every group, `[E, B, G, 64]`.
    `whole`: what is stored for whole matrices, as it came; `factors`: the same for every row, float32 `[E, B, 64]`.
    `biases`: float32 `[E, 64 B]`, zero where there is none. `shape`: N and K of a weight.
    """

    format: Format
    parts: int
    shape: tuple[int, int]
    form: CodebookForm
    group: int
    codes: Tensor
    scales: Mapping[str, Tensor]
    whole: Mapping[str, Tensor]
    factors: Tensor
    biases: Tensor

    @classmethod
    def of(cls, weight: Quantized, bias: Tensor | None) -> CodebookProjection:
        """`weight` of all experts, in blocks. Raises BackendError for a format that no kernel reads."""
        found = codebook_form(weight.format)
        if found is None:
            raise BackendError(f"no kernel reads {weight.format!r}: bind the layer, which asks first")
        form, group = found
        experts, rows, columns = weight.shape
        whole = {name: weight.scales[name] for name in weight.format.scale_names if name == "global_scale"}
        scales = {name: scale for name, scale in weight.scales.items() if name not in whole}
        codes = _blocks(packed_codes(weight.data[0]), experts)
        packed = {name: _blocks(packed_scales(scale[0]), experts) for name, scale in scales.items()}
        for e in range(experts):
            codes[e] = packed_codes(weight.data[e])
            for name, scale in scales.items():
                packed[name][e].view(torch.uint8).copy_(packed_scales(scale[e]).view(torch.uint8))
        biases = torch.zeros(experts, 64 * codes.shape[1], dtype=torch.float32, device="cpu")
        if bias is not None:
            biases[:, :rows] = bias.detach()
        factors = torch.zeros_like(biases) if whole else biases[:0]
        for scale in whole.values():
            factors[:, :rows] = scale.flatten(1).repeat_interleave(rows // weight.parts, 1)
        return cls(
            weight.format, weight.parts, (rows, columns), form, group or columns, codes, packed, whole, factors, biases
        )

    def __call__(self, experts: list[int], counts: list[int], rows: Tensor, *, compiled: bool) -> Tensor:
        """`[S, N]` for `rows`, bfloat16 `[S, K]`, expert by expert.

        Without `compiled` no kernel is used; with it, as many threads as the caller has told Numba. Calling it with no
        rows compiles the kernel.
        """
        columns, padded = self.shape[0], self.biases.shape[1]
        out = torch.empty(rows.shape[0], padded, dtype=torch.float32, device="cpu")
        most = MANY_ROWS if compiled else 0
        groups: list[tuple[int, int, int]] = []
        start = 0
        for expert, count in zip(experts, counts, strict=True):
            if count <= most:
                groups.append((expert, start, count))
            else:
                self._read_back(expert, rows[start : start + count], out[start : start + count])
            start += count
        if compiled:
            from moesaic.kernels.codebook_product import codebook_product  # noqa: PLC0415

            dense = rows if rows.stride(1) == 1 else rows.contiguous()
            codebook_product(self.form, self._addresses, groups, dense, out)
        return out if columns == padded else out[:, :columns]

    def stored(self) -> Quantized:
        """The weights of all experts as they came, bit for bit."""
        each = [self._expert(e) for e in range(self.codes.shape[0])]
        scales = {name: torch.stack([one.scales[name] for one in each]) for name in self.format.scale_names}
        return Quantized(self.format, torch.stack([one.data for one in each]), scales, self.parts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor held."""
        return (self.codes, *self.scales.values(), *self.whole.values(), self.factors, self.biases)

    @cached_property
    def _addresses(self) -> tuple[int, ...]:
        zero_points = self.scales.get("zero_point", self.codes)
        held = (self.codes, self.scales["scale"], zero_points, self.factors, self.biases)
        return (*(tensor.data_ptr() for tensor in held), *self.codes.shape[1:3], self.group // 2)

    def _expert(self, expert: int) -> Quantized:
        rows = self.shape[0]
        scales = {name: canonical_scales(scale[expert], rows) for name, scale in self.scales.items()}
        whole = {name: scale[expert] for name, scale in self.whole.items()}
        return Quantized(self.format, canonical_codes(self.codes[expert], rows), {**scales, **whole}, self.parts)

    def _read_back(self, expert: int, rows: Tensor, out: Tensor) -> None:
        weight = self._expert(expert).dequantize(rows.dtype)
        columns = self.shape[0]
        torch.add(functional.linear(rows, weight), self.biases[expert, :columns], out=out[:, :columns])


def _blocks(of_first: Tensor, experts: int) -> Tensor:
    return torch.empty(experts, *of_first.shape, dtype=of_first.dtype, device="cpu")
