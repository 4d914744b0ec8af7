"""Mutants of dispatch: tokens, rows and router weights that arrive changed, as a narrow transport leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.bent import EXPANDED, GATHERED, SLABS, Bent, of_fleet
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.loopback import LoopbackReceipt


@dataclass(frozen=True, kw_only=True)
class Wire(Bent):
    """What a rank hands in, and what its experts answer, as they arrive."""

    def token(self, hidden: Tensor) -> Tensor:
        """Tokens `[T, H]` as they arrive."""
        return hidden

    def weight(self, weights: Tensor) -> Tensor:
        """Router weights `[T, K]` as they arrive."""
        return weights

    def row(self, rows: Tensor) -> Tensor:
        """The experts' rows as they come back."""
        return rows

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        return self.inner.dispatch_all(
            [(self.token(hidden), replace(r, topk_weights=self.weight(r.topk_weights))) for hidden, r in calls]
        )

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        return self.inner.combine_all([self.row(each) for each in rows], receipts)


@final
@dataclass(frozen=True, kw_only=True)
class TokensInFP8(Wire):
    """Tokens travel in E4M3 without a scale."""

    title: ClassVar[str] = "F50_tokens_travel_in_fp8"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        return hidden.float().to(torch.float8_e4m3fn).to(hidden.dtype)


@final
@dataclass(frozen=True, kw_only=True)
class TokensInBfloat16(Wire):
    """Tokens of a float32 layer travel in bfloat16."""

    title: ClassVar[str] = "F37_float32_tokens_travel_in_bfloat16"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        return hidden.bfloat16().to(hidden.dtype)


@final
@dataclass(frozen=True, kw_only=True)
class TokensCutAtSix(Wire):
    """Tokens are cut at 6, the largest value of the format that the transport has for others."""

    title: ClassVar[str] = "F50_tokens_cut_at_six"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        return hidden.clamp(-6.0, 6.0)


@final
@dataclass(frozen=True, kw_only=True)
class WeightsInBfloat16(Wire):
    """Router weights travel in bfloat16, also of a float32 layer."""

    title: ClassVar[str] = "F37_router_weights_travel_in_bfloat16"

    @override
    def weight(self, weights: Tensor) -> Tensor:
        return weights.bfloat16().float()


@final
@dataclass(frozen=True, kw_only=True)
class NegativeWeightsLostOnTheWay(Wire):
    """A slot whose router weight is negative counts for nothing."""

    title: ClassVar[str] = "F18_slots_of_negative_weights_lost_on_the_way"

    @override
    def weight(self, weights: Tensor) -> Tensor:
        return torch.where(weights < 0, 0.0, weights)


@final
@dataclass(frozen=True, kw_only=True)
class RowsCutAt448(Wire):
    """The experts' rows come back cut at 448."""

    title: ClassVar[str] = "F50_rows_come_back_cut_at_448"

    @override
    def row(self, rows: Tensor) -> Tensor:
        return torch.where(rows.abs() > 448, rows.sign() * 448, rows)


@final
@dataclass(frozen=True, kw_only=True)
class NanTokensAreZero(Wire):
    """NaN in a token arrives as zero."""

    title: ClassVar[str] = "F06_nan_in_a_token_arrives_as_zero"

    @override
    def token(self, hidden: Tensor) -> Tensor:
        return hidden.nan_to_num(nan=0.0)


@final
@dataclass(frozen=True, kw_only=True)
class NanRowsAreZero(Wire):
    """NaN in the experts' rows comes back as zero."""

    title: ClassVar[str] = "F06_nan_in_a_row_comes_back_as_zero"

    @override
    def row(self, rows: Tensor) -> Tensor:
        return rows.nan_to_num(nan=0.0)


MUTANTS: tuple[Mutant, ...] = (
    of_fleet(TokensInFP8(inner=GATHERED), "equals_one_rank"),
    of_fleet(TokensInBfloat16(inner=EXPANDED), "equals_one_rank"),
    of_fleet(TokensCutAtSix(inner=SLABS), "equals_one_rank"),
    of_fleet(WeightsInBfloat16(inner=GATHERED), "equals_one_rank"),
    of_fleet(NegativeWeightsLostOnTheWay(inner=EXPANDED), "equals_one_rank"),
    of_fleet(RowsCutAt448(inner=SLABS), "equals_one_rank"),
    of_fleet(NanTokensAreZero(inner=GATHERED), "nan_tokens"),
    of_fleet(NanRowsAreZero(inner=EXPANDED), "nan_tokens"),
)
