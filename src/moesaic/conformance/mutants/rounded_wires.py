"""Mutants of dispatch: fleets that round tokens to FP8 on their way, with one defect in what is made of the codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.bent import DISTINCT, EXPANDED, GATHERED, SLABS
from moesaic.conformance.mutants.judge_dispatch import DispatchJudge
from moesaic.conformance.mutants.wires import Wire
from moesaic.dispatch.loopback import Loopback
from moesaic.quant import FP8, Format, PerGroup, Quantized

CODES = FP8(PerGroup(128))


@dataclass(frozen=True, kw_only=True)
class InFP8(Wire):
    """Tokens travel as E4M3 codes with a scale for 128 columns: nothing is wrong with it."""

    title: ClassVar[str] = "control"

    @property
    @override
    def rounding(self) -> Format:
        return CODES

    def codes(self, codes: Tensor) -> Tensor:
        """The codes `[T, H]` as they arrive."""
        return codes

    def scales(self, scales: Tensor) -> Tensor:
        """The scales `[T, groups]` as they arrive."""
        return scales

    @override
    def token(self, hidden: Tensor) -> Tensor:
        finite = hidden.isfinite()
        sent = CODES.quantize(hidden.where(finite, 0))
        came = Quantized(CODES, self.codes(sent.data), {"scale": self.scales(sent.scales["scale"])})
        return came.dequantize(hidden.dtype).where(finite, torch.nan)


@final
@dataclass(frozen=True, kw_only=True)
class ScalesOfAnotherRow(InFP8):
    """A token is read back with the scales of the token before it."""

    title: ClassVar[str] = "F50_scales_of_another_token"

    @override
    def scales(self, scales: Tensor) -> Tensor:
        return scales.roll(1, 0)


@final
@dataclass(frozen=True, kw_only=True)
class CodesAsNumbers(InFP8):
    """Codes are converted to int8 for a transport that knows no FP8, instead of their bits being sent."""

    title: ClassVar[str] = "F50_codes_travel_as_numbers"

    @override
    def codes(self, codes: Tensor) -> Tensor:
        return codes.float().clamp(-128, 127).to(torch.int8).float().to(codes.dtype)


@final
@dataclass(frozen=True, kw_only=True)
class ScalesInBfloat16(InFP8):
    """The scales travel in bfloat16."""

    title: ClassVar[str] = "F50_scales_travel_in_bfloat16"

    @override
    def scales(self, scales: Tensor) -> Tensor:
        return scales.bfloat16().float()


@final
@dataclass(frozen=True, kw_only=True)
class StaleTail(InFP8):
    """What an earlier call left behind the last column takes part in the scale of the last, short group."""

    title: ClassVar[str] = "F24_stale_columns_set_a_scale"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        columns = hidden.shape[1]
        return InFP8.token(self, pad(hidden, (0, -columns % 128), value=3e4))[:, :columns]


@final
@dataclass(frozen=True, kw_only=True)
class NanInAScale(InFP8):
    """The scale of a group that holds a NaN is NaN, and with it the whole group."""

    title: ClassVar[str] = "F06_nan_in_a_token_spoils_its_scale"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        lost = CODES.granularity.spread(CODES.granularity.largest(hidden.float()).isnan(), tuple(hidden.shape))
        return InFP8.token(self, hidden).masked_fill(lost, torch.nan)


@final
@dataclass(frozen=True, kw_only=True)
class SumsInFP8(InFP8):
    """The experts' rows come back in FP8 too."""

    title: ClassVar[str] = "F50_rows_come_back_in_fp8"

    @override
    def row(self, rows: Tensor) -> Tensor:
        return CODES.round_trip(rows)


@final
@dataclass(frozen=True, kw_only=True)
class NotRounded(InFP8):
    """Tokens are said to be rounded, and arrive as they were."""

    title: ClassVar[str] = "F50_tokens_said_to_be_rounded_are_not"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        return hidden


def _of(subject: InFP8, check: str) -> Mutant:
    """As `of_fleet`, beside a control that rounds as well."""
    inner: Loopback = subject.inner
    judge = DISTINCT if inner == SLABS else DispatchJudge()
    meaning = (subject.__class__.__doc__ or subject.title).splitlines()[0]
    return Mutant(
        name=subject.title, meaning=meaning, check=check, subject=subject, control=InFP8(inner=inner), judge=judge
    )


MUTANTS: tuple[Mutant, ...] = (
    _of(ScalesOfAnotherRow(inner=GATHERED), "exactly_once"),
    _of(CodesAsNumbers(inner=SLABS), "exactly_once"),
    _of(ScalesInBfloat16(inner=GATHERED), "equals_one_rank"),
    _of(StaleTail(inner=EXPANDED), "exactly_once"),
    _of(NanInAScale(inner=GATHERED), "nan_tokens"),
    _of(SumsInFP8(inner=SLABS), "equals_one_rank"),
    _of(NotRounded(inner=EXPANDED), "equals_one_rank"),
)
