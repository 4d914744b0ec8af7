"""Wrong activations whose formula is right: NaN lost, coarse numbers, memory and rows that are not theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from moesaic.activations import Activation, Identity, ReLU, SiLU, SiTU, SwiGLU
from moesaic.activations.base import At, Constant, constant
from moesaic.conformance.mutants.activations import of_activation
from moesaic.conformance.mutants.base import Mutant


@final
@dataclass(frozen=True)
class NanLaundered(Activation):
    """SwiGLU whose clamp is fmin, which answers the limit for a NaN."""

    gated: ClassVar[bool] = True
    limit: Constant = constant(10.0, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        limit = torch.as_tensor(at(self.limit), dtype=rows.dtype)
        gate, up = rows.chunk(2, dim=-1)
        return functional.silu(torch.fmin(gate, limit)) * torch.fmax(torch.fmin(up, limit), -limit)


@final
@dataclass(frozen=True)
class TanhOfElevenBits(Activation):
    """SiTU whose float32 tanh has 11 bits, as tanh.approx has."""

    gated: ClassVar[bool] = True
    gate_scale: Constant = constant(4.0, positive=True)
    linear_scale: Constant = constant(25.0, positive=True)

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        gate, up = rows.chunk(2, dim=-1)
        gate_scale, linear_scale = at(self.gate_scale), at(self.linear_scale)
        capped = gate_scale * self.tanh(gate / gate_scale)
        return capped * torch.sigmoid(gate) * linear_scale * self.tanh(up / linear_scale)

    def tanh(self, values: Tensor) -> Tensor:
        """Exact in float64 only."""
        exact = torch.tanh(values)
        return exact if values.dtype == torch.float64 else exact.half().float()


@final
@dataclass(frozen=True)
class Bfloat16Inside(Activation):
    """SiLU computed in bfloat16 and widened."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        if rows.dtype == torch.float64:
            return functional.silu(rows)
        return functional.silu(rows.bfloat16()).float()


@final
@dataclass(frozen=True)
class SigmoidOverflows(Activation):
    """SiLU with `exp(x) / (1 + exp(x))`, which is NaN where float32's exp overflows."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        power = torch.exp(rows)
        sigmoid = power / (1 + power)
        return rows * (sigmoid if rows.dtype != torch.float64 else torch.sigmoid(rows))


@final
@dataclass(frozen=True)
class Interleaved(Activation):
    """SwiGLU that reads gate and up in turns instead of side by side."""

    gated: ClassVar[bool] = True

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return functional.silu(rows[..., 0::2]) * rows[..., 1::2]


@final
@dataclass(frozen=True)
class ScaledByTheBatch(Activation):
    """ReLU in units of the batch's largest value, rounded as a dynamic scale over all rows rounds it."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        unit = rows.nan_to_num().abs().amax() / 2**20 if rows.numel() else 1.0
        return torch.where(rows.isfinite(), torch.round(rows / unit) * unit, rows).relu()


@final
@dataclass(frozen=True)
class InPlace(Activation):
    """ReLU that writes into the rows it was given."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return rows.relu_()


@final
@dataclass(frozen=True)
class ViewOfTheRows(Activation):
    """Identity that answers the memory of its input."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return rows


@final
@dataclass(frozen=True)
class RoundsAgain(Activation):
    """SiLU that answers in the dtype of the rows, a rounding more."""

    gated: ClassVar[bool] = False

    @override
    def __call__(self, rows: Tensor, expert_ids: Tensor | None = None) -> Tensor:
        return functional.silu(rows.float()).to(rows.dtype).to(torch.promote_types(rows.dtype, torch.float32))

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return functional.silu(rows)


@final
@dataclass(frozen=True)
class OddWidthTaken(Activation):
    """SwiGLU that cuts an odd number of columns in unequal halves and drops one."""

    gated: ClassVar[bool] = True

    @override
    def __call__(self, rows: Tensor, expert_ids: Tensor | None = None) -> Tensor:
        work = rows if rows.dtype == torch.float64 else rows.float()
        half = rows.shape[-1] // 2
        return functional.silu(work[..., :half]) * work[..., half : 2 * half]

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        return functional.silu(rows)


@final
@dataclass(frozen=True)
class OneBuffer(Activation):
    """ReLU that hands out one buffer again and again."""

    gated: ClassVar[bool] = False

    @override
    def formula(self, rows: Tensor, at: At) -> Tensor:
        kept: Tensor | None = vars(self).get("kept")
        if kept is None or kept.shape != rows.shape or kept.dtype != rows.dtype:
            kept = torch.empty_like(rows)
            object.__setattr__(self, "kept", kept)
        return torch.clamp(rows, min=0, out=kept)


WRONG_NUMERICS: tuple[Mutant, ...] = (
    of_activation("F05_tanh_of_eleven_bits", TanhOfElevenBits(), "float32", SiTU(), published=False),
    of_activation("F05_bfloat16_inside", Bfloat16Inside(), "float32", SiLU(), published=False),
    of_activation("F06_nan_laundered_by_a_clamp", NanLaundered(), "nan_stays", SwiGLU(limit=10.0)),
    of_activation("F06_sigmoid_overflows", SigmoidOverflows(), "extremes", SiLU()),
    of_activation("F08_gate_and_up_in_turns", Interleaved(), "elementwise", SwiGLU()),
    of_activation("F19_scale_of_the_whole_batch", ScaledByTheBatch(), "elementwise", ReLU()),
    of_activation("F27_activation_in_place", InPlace(), "own_memory", ReLU()),
    of_activation("F27_view_of_the_rows", ViewOfTheRows(), "own_memory", Identity()),
    of_activation("F37_activation_rounds_again", RoundsAgain(), "narrow_inputs", SiLU()),
    of_activation("F59_odd_width_taken", OddWidthTaken(), "shapes", SwiGLU()),
    of_activation("F93_one_buffer_for_all_calls", OneBuffer(), "own_memory", ReLU()),
)
