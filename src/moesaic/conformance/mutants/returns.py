"""Mutants of combine: what is made of the experts' rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, StandardBatch
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.bent import (
    EXPANDED,
    GATHERED,
    SLABS,
    Bent,
    of_fleet,
)
from moesaic.dispatch.fleet import Call
from moesaic.dispatch.loopback import LoopbackReceipt


@final
@dataclass(frozen=True, kw_only=True)
class LastRankLost(Bent):
    """The contribution of the last rank is missing."""

    title: ClassVar[str] = "F78_contribution_of_the_last_rank_lost"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        return self.inner.combine_all([*rows[:-1], torch.zeros_like(rows[-1])], receipts)


@final
@dataclass(frozen=True, kw_only=True)
class CombineUnweighted(Bent):
    """Rows that come back unweighted are summed as they are."""

    title: ClassVar[str] = "F31_combine_never_weights"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        bare = [replace(each, arrived=replace(each.arrived, weight=None)) for each in receipts]
        return self.inner.combine_all(rows, bare)


@final
@dataclass(frozen=True, kw_only=True)
class CombineWeightsTwice(Bent):
    """Combine weights rows twice."""

    title: ClassVar[str] = "F31_combine_weights_twice"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        twice = [
            replace(
                each,
                arrived=replace(each.arrived, weight=None if each.arrived.weight is None else each.arrived.weight**2),
            )
            for each in receipts
        ]
        return self.inner.combine_all(rows, twice)


@final
@dataclass(frozen=True, kw_only=True)
class WeightedOnTheWay(Bent):
    """The router weight is on the input although nobody asked for it."""

    title: ClassVar[str] = "F31_weight_on_the_way_there"

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        return replace(self.inner, weight_on_input=True).dispatch_all(calls)


@final
@dataclass(frozen=True, kw_only=True)
class RoundsEachSum(Bent):
    """Each sum is rounded to the dtype of the rows."""

    title: ClassVar[str] = "F37_combine_in_the_dtype_of_the_rows"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        none = [torch.zeros_like(r) for r in rows]
        total = self.inner.combine_all([rows[0], *none[1:]], receipts)
        for rank in range(1, len(rows)):
            one = [r if i == rank else none[i] for i, r in enumerate(rows)]
            total = [a + b for a, b in zip(total, self.inner.combine_all(one, receipts), strict=True)]
        return total


@final
@dataclass(frozen=True, kw_only=True)
class ReadsTheTail(Bent):
    """The last row of a slab is added with weight zero."""

    title: ClassVar[str] = "F15_undefined_row_read_by_combine"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        last = rows[0].flatten(0, -2)[-1:]
        return [output + 0 * last if len(output) else output for output in self.inner.combine_all(rows, receipts)]


@final
@dataclass(frozen=True, kw_only=True)
class ScaleOfAllRows(Bent):
    """Rows in bfloat16 come back in 10 bits with a scale of all, undefined ones too, where NaN does not count."""

    title: ClassVar[str] = "F19_stale_rows_set_the_scale_of_combine"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        if rows[0].dtype != torch.bfloat16:
            return self.inner.combine_all(rows, receipts)
        scaled: list[Tensor] = []
        for each in rows:
            largest = each.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs().max().float().clamp(min=1.0)
            step = torch.exp2(largest.log2().ceil()) / 2**9
            scaled.append(((each.float() / step).round() * step).to(each.dtype))
        return self.inner.combine_all(scaled, receipts)


@final
@dataclass(frozen=True, kw_only=True)
class RowsInBfloat16(Bent):
    """Rows come back in bfloat16 whatever their dtype."""

    title: ClassVar[str] = "F37_rows_come_back_in_bfloat16"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        return self.inner.combine_all([each.bfloat16().to(each.dtype) for each in rows], receipts)


@final
@dataclass(frozen=True, kw_only=True)
class OneSlotUnweighted(Bent):
    """The path for one slot a token does not weight what comes back."""

    title: ClassVar[str] = "F31_combine_of_one_slot_never_weights"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        tokens = torch.cat([each.arrived.token for each in receipts])
        if not len(tokens) or len(tokens.unique()) < len(tokens):
            return self.inner.combine_all(rows, receipts)
        bare = [replace(each, arrived=replace(each.arrived, weight=None)) for each in receipts]
        return self.inner.combine_all(rows, bare)


@final
@dataclass(frozen=True, kw_only=True)
class OneReceipt(Bent):
    """What combine needs is kept in the dispatcher."""

    title: ClassVar[str] = "F93_receipt_kept_in_the_dispatcher"

    last: list[LoopbackReceipt] = field(default_factory=list[LoopbackReceipt], compare=False)

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        self.last[:] = [receipt for _, receipt in delivered]
        return delivered

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        del receipts
        return self.inner.combine_all(rows, self.last)


@final
@dataclass(frozen=True, kw_only=True)
class OneBuffer(Bent):
    """Rows of two calls lie in one buffer."""

    title: ClassVar[str] = "F93_rows_of_two_calls_in_one_buffer"

    kept: dict[torch.Size, Tensor] = field(default_factory=dict[torch.Size, Tensor], compare=False)

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        delivered = self.inner.dispatch_all(calls)
        return [(self.stored(rank, batch), receipt) for rank, (batch, receipt) in enumerate(delivered)]

    def stored(self, rank: int, batch: Batch) -> Batch:
        """The batch with its rows in the buffer that is kept for its shape."""
        if rank or not isinstance(batch, StandardBatch):
            return batch
        buffer = self.kept.setdefault(batch.rows.shape, torch.zeros_like(batch.rows))
        if buffer.dtype != batch.rows.dtype:
            return batch
        return replace(batch, hidden_states=buffer.copy_(batch.rows))


@final
@dataclass(frozen=True, kw_only=True)
class OutputInInput(Bent):
    """The output is in the memory of the hidden states."""

    title: ClassVar[str] = "F27_output_in_the_memory_of_the_tokens"

    given: list[Tensor] = field(default_factory=list[Tensor], compare=False)

    @override
    def dispatch_all(self, calls: Sequence[Call]) -> list[tuple[Batch, LoopbackReceipt]]:
        self.given[:] = [hidden for hidden, _ in calls]
        return self.inner.dispatch_all(calls)

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        outputs = self.inner.combine_all(rows, receipts)
        pairs = zip(self.given, outputs, strict=True)
        return [own.copy_(out) if own.shape == out.shape and own.dtype == out.dtype else out for own, out in pairs]


@final
@dataclass(frozen=True, kw_only=True)
class ScalesRows(Bent):
    """The experts' rows are weighted in place."""

    title: ClassVar[str] = "F27_rows_weighted_in_place"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        outputs = self.inner.combine_all(rows, receipts)
        for each in rows:
            each.mul_(2)
        return outputs


@final
@dataclass(frozen=True, kw_only=True)
class OrderChanges(Bent):
    """The order of the sum, and with it the bits, change from call to call."""

    title: ClassVar[str] = "F94_order_of_combine_changes"

    turn: list[int] = field(default_factory=lambda: [0], compare=False)

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        self.turn[0] += 1
        bent = 1 + 2.0**-22 * (self.turn[0] % 3)
        return [output * bent for output in self.inner.combine_all(rows, receipts)]


@final
@dataclass(frozen=True, kw_only=True)
class OutputPadded(Bent):
    """The output keeps the width in which rows travel."""

    title: ClassVar[str] = "F24_output_as_wide_as_it_travels"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        outputs = self.inner.combine_all(rows, receipts)
        return [torch.nn.functional.pad(output, (0, -output.shape[1] % 64)) for output in outputs]


@final
@dataclass(frozen=True, kw_only=True)
class OutputFloat32(Bent):
    """The output is in the dtype of the sum."""

    title: ClassVar[str] = "F37_output_of_combine_in_float32"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        return [output.float() for output in self.inner.combine_all(rows, receipts)]


@final
@dataclass(frozen=True, kw_only=True)
class EmptyRankShifts(Bent):
    """Ranks without tokens are left out when outputs are handed back."""

    title: ClassVar[str] = "F79_output_of_the_next_rank"

    @override
    def combine_all(self, rows: Sequence[Tensor], receipts: Sequence[LoopbackReceipt]) -> list[Tensor]:
        outputs = self.inner.combine_all(rows, receipts)
        there = [output for output in outputs if len(output)]
        return [*there, *(output for output in outputs if not len(output))]


MUTANTS: tuple[Mutant, ...] = (
    of_fleet(LastRankLost(inner=SLABS), "exactly_once"),
    of_fleet(CombineUnweighted(inner=SLABS), "exactly_once"),
    of_fleet(CombineWeightsTwice(inner=EXPANDED), "exactly_once"),
    of_fleet(WeightedOnTheWay(inner=EXPANDED), "equals_one_rank"),
    of_fleet(RoundsEachSum(inner=SLABS), "float32_sum"),
    of_fleet(ReadsTheTail(inner=SLABS), "undefined_rows"),
    of_fleet(ScaleOfAllRows(inner=SLABS), "undefined_rows"),
    of_fleet(RowsInBfloat16(inner=SLABS), "equals_one_rank"),
    of_fleet(OneSlotUnweighted(inner=SLABS), "exactly_once"),
    of_fleet(OneReceipt(inner=GATHERED), "interleaved"),
    of_fleet(OneBuffer(inner=GATHERED), "interleaved"),
    of_fleet(OutputInInput(inner=GATHERED), "ownership"),
    of_fleet(ScalesRows(inner=SLABS), "ownership"),
    of_fleet(OrderChanges(inner=GATHERED), "two_runs"),
    of_fleet(OutputPadded(inner=GATHERED), "exactly_once"),
    of_fleet(OutputFloat32(inner=GATHERED), "equals_one_rank"),
    of_fleet(EmptyRankShifts(inner=GATHERED), "exactly_once"),
)
