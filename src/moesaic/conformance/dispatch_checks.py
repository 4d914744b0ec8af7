"""Every promise of a dispatcher that the kit tries, one class each. They are tried on a fleet (`dispatch/fleet.py`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Batch, BatchedBatch, GroupedBatch
from moesaic.conformance.checks.ownership import as_bytes, batch_tensors
from moesaic.conformance.figures import apart, figure
from moesaic.conformance.fleet_subject import FleetSubject, active_slots, live_rows
from moesaic.conformance.traffic import Traffic
from moesaic.errors import Nonconformance


@dataclass(frozen=True)
class DispatchCheck(ABC):
    """One promise. To add one, copy a class of this file and add a line to `DISPATCH_CHECKS`."""

    name: ClassVar[str]
    meaning: ClassVar[str]

    @abstractmethod
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        """Try the promise. Raises Nonconformance with what was looked at, wanted and got if it is not kept."""


@final
@dataclass(frozen=True)
class EveryPair(DispatchCheck):
    """Each rank gets each (token, slot) pair of its experts once, in a batch that keeps its layout's contract.

    Meant for F14, F21, F76, F78, F81: ids that are not local, uneven ranks' offsets, pairs lost or doubled, counts of
    another meaning, offsets that are not aligned, undefined memory handed out as live.
    """

    name: ClassVar[str] = "every_pair"
    meaning: ClassVar[str] = "batches keep their layout's contract and hold each pair of the rank's experts once"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        calls = subject.calls(traffic)
        ids = torch.cat([routing.topk_ids for _, routing in calls]).flatten().long()
        delivered = subject.dispatch(traffic, calls)
        for rank, (batch, _) in zip(subject.fleet.played, delivered, strict=True):
            if not subject.fleet.layout.accepts(batch.layout):
                raise Nonconformance(f"the layout of rank {rank}", repr(subject.fleet.layout), repr(batch.layout))
            experts = subject.fleet.experts(rank)
            wanted = [int((ids == expert).sum()) for expert in experts]
            got = _pairs(batch, len(experts))
            if got != wanted:
                raise Nonconformance(f"pairs of each of the experts {experts} of rank {rank}", f"{wanted}", f"{got}")


@final
@dataclass(frozen=True)
class ExactlyOnce(DispatchCheck):
    """Expert e returns (e + 1) * x * |x|; whole numbers and weights of powers of two make every sum exact.

    Meant for F24, F31, F76, F78, F79: a rank's contribution missing, a weight applied twice, never or on the wrong
    side, rows of another token, columns lost where the hidden size is no multiple of the transport's.
    """

    name: ClassVar[str] = "exactly_once"
    meaning: ClassVar[str] = "each active slot contributes once with its weight, each inactive one nothing"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        exact, fleet = replace(traffic, dtype=torch.float32), subject.fleet
        sides = (False, True) if fleet.layout.has_routing else (fleet.weight_on_input,)
        for on_input in sides:
            calls = subject.calls(exact)
            outputs = subject.outputs(exact, subject.marked_on_input if on_input else subject.marked, calls)
            for rank, output in zip(fleet.played, outputs, strict=True):
                hidden, routing = calls[rank]
                ids, weights = routing.topk_ids.double(), routing.topk_weights.double()
                active = (ids >= 0) & (ids < fleet.num_experts)
                share = weights * weights if on_input else weights
                factors = torch.where(active, share * (ids + 1), 0.0).sum(1, keepdim=True)
                wanted = hidden.double() * hidden.double().abs() * factors
                side = "input" if on_input else "output"
                _same(output.double(), wanted, f"the output of rank {rank}, weights on the {side}")


@final
@dataclass(frozen=True)
class UndefinedRows(DispatchCheck):
    """NaN, and then 1e4, in every row of the experts' output that no contract defines. Meant for F15, F19, F20."""

    name: ClassVar[str] = "undefined_rows"
    meaning: ClassVar[str] = "rows that the experts leave undefined reach no output"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        calls = subject.calls(traffic)
        delivered = subject.dispatch(traffic, calls)
        receipts = [receipt for _, receipt in delivered]
        found: list[list[Tensor]] = []
        for poison in (0.0, float("nan"), 1e4):
            rows = subject.rows(subject.marked, delivered)
            for rank, made, (batch, _) in zip(subject.fleet.played, rows, delivered, strict=True):
                made[~live_rows(batch, len(subject.fleet.experts(rank)))] = poison
            found.append(subject.combine(calls, rows, receipts))
        for again in found[1:]:
            _all_same(again, found[0], "outputs under another poison")


@final
@dataclass(frozen=True)
class NanTokens(DispatchCheck):
    """One element of a token of each rank is NaN: it comes back as NaN there, and nothing else changes a bit.

    Meant for F06 and F36: NaN that a clamp or a narrow transport turns into a number, so that nobody sees it.
    """

    name: ClassVar[str] = "nan_tokens"
    meaning: ClassVar[str] = "NaN in a token arrives, comes back, and stays in its token"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        wanted, calls = subject.outputs(traffic, subject.marked), subject.calls(traffic)
        struck: dict[int, Tensor] = {}
        for rank, (hidden, routing) in enumerate(calls):
            active = ((routing.topk_ids >= 0) & (routing.topk_ids < subject.fleet.num_experts)).any(1)
            first = active & (active.cumsum(0) == 1)
            struck[rank] = first.unsqueeze(1) & (torch.arange(hidden.shape[1], device=subject.device) == 1)
            hidden[struck[rank]] = math.nan
        delivered = subject.fleet.dispatch_all(calls)  # whose contract forbids NaN where nothing is wrong upstream
        rows = subject.rows(subject.marked, delivered)
        outputs = subject.combine(calls, rows, [receipt for _, receipt in delivered])
        for rank, output, calm in zip(subject.fleet.played, outputs, wanted, strict=True):
            if not bool(output[struck[rank]].isnan().all()):
                raise Nonconformance(f"the output of rank {rank} where its token holds NaN", "NaN", "a number")
            kept = output.masked_fill(struck[rank], 0.0), calm.masked_fill(struck[rank], 0.0)
            _same(kept[0].double(), kept[1].double(), f"the output of rank {rank} beside a NaN")


@final
@dataclass(frozen=True)
class GarbageIds(DispatchCheck):
    """Other garbage in the inactive slots: -1, E, E + 5, the ends of int32. Meant for F14, F17, F23."""

    name: ClassVar[str] = "garbage_ids"
    meaning: ClassVar[str] = "an id outside of the model's experts is inactive, whatever its value"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        wanted = subject.outputs(traffic, subject.marked)
        for rotation in range(1, 7):
            got = subject.outputs(replace(traffic, rotation=rotation), subject.marked)
            _all_same(got, wanted, f"outputs under other garbage (rotation {rotation})")


@final
@dataclass(frozen=True)
class Interleaved(DispatchCheck):
    """Dispatch a, dispatch b, combine a, combine b. Meant for F93: what combine needs is in the receipt."""

    name: ClassVar[str] = "interleaved"
    meaning: ClassVar[str] = "calls that interleave do not meet"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        other = replace(traffic, tokens=traffic.tokens[::-1], seed=traffic.seed + 100, inactive=traffic.inactive / 2)
        both = (traffic, other)
        alone = [subject.outputs(each, subject.marked) for each in both]
        for order in ((0, 1), (1, 0)):
            calls = [subject.calls(each) for each in both]
            delivered = [subject.dispatch(each, given) for each, given in zip(both, calls, strict=True)]
            rows = [subject.rows(subject.marked, each) for each in delivered]
            outputs: dict[int, list[Tensor]] = {}
            for i in order:
                outputs[i] = subject.combine(calls[i], rows[i], [receipt for _, receipt in delivered[i]])
            for i in order:
                _all_same(outputs[i], alone[i], f"outputs of call {i} of two")


@final
@dataclass(frozen=True)
class TwoRuns(DispatchCheck):
    """The same call again gives the same bits. Meant for F94: a combine in an order that changes."""

    name: ClassVar[str] = "two_runs"
    meaning: ClassVar[str] = "two runs agree bit for bit"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        first = subject.outputs(traffic, subject.marked)
        for _ in range(3):
            _all_same(subject.outputs(traffic, subject.marked), first, "outputs of a second run")


@final
@dataclass(frozen=True)
class Ownership(DispatchCheck):
    """Inputs, batches and the experts' rows keep their bytes; outputs have memory of their own. Meant for F27, F93."""

    name: ClassVar[str] = "ownership"
    meaning: ClassVar[str] = "what is given is not changed, and outputs share no memory with it"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        calls = subject.calls(traffic)
        given = [t for hidden, routing in calls for t in (hidden, routing.topk_ids, routing.topk_weights)]
        before = [as_bytes(t).clone() for t in given]
        delivered = subject.dispatch(traffic, calls)
        rows = subject.rows(subject.marked, delivered)
        handed = [t for batch, _ in delivered for t in batch_tensors(batch)]
        before_combine = [as_bytes(t).clone() for t in (*handed, *rows)]
        outputs = subject.combine(calls, rows, [receipt for _, receipt in delivered])
        _unchanged("what the ranks hand in", given, before)
        _unchanged("a batch or the experts' rows", [*handed, *rows], before_combine)
        storages = {_storage(t) for t in (*given, *handed) if t.numel()}
        if any(_storage(output) in storages for output in outputs if output.numel()):
            raise Nonconformance("the memory of an output", "memory of its own", "that of what was handed in")


@final
@dataclass(frozen=True)
class Float32Sum(DispatchCheck):
    """Contributions 256, 1 and 1 in bfloat16: 258 if they are summed in float32, 256 if each sum is rounded.

    Meant for F37 and F94: a combine in the dtype of the rows. Needs three experts.
    """

    name: ClassVar[str] = "float32_sum"
    meaning: ClassVar[str] = "combine sums in float32 and rounds once"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        if subject.fleet.weight_on_input:
            return  # the weights are rounded with the rows
        ranks = [r for r in range(subject.fleet.num_ranks) if len(subject.fleet.experts(r))]
        if len(ranks) == 2 and subject.fleet.layout.has_routing:
            return  # a rank rounds its own sum with its rows, and the sum of two is rounded once in any dtype
        # As many ranks as there are: a rank that holds two of the three experts sums them before it sends.
        experts = [subject.fleet.experts(r).start for r in ranks[:3]]
        experts += [e for e in range(subject.fleet.num_experts) if e not in experts][: 3 - len(experts)]
        if len(experts) < 3 or traffic.top_k < 3:
            return
        orders = list(permutations((256.0, 1.0, 1.0)))
        sharp = replace(traffic, dtype=torch.bfloat16, inactive=0.0)
        calls = subject.calls(sharp)
        for hidden, routing in calls:
            hidden.fill_(1.0)
            routing.topk_ids[:, 3:] = -1
            routing.topk_ids[:, :3] = torch.tensor(experts, dtype=torch.int32, device=subject.device)
            for token in range(len(hidden)):
                shares = torch.tensor(orders[token % len(orders)]) / torch.tensor([e + 1.0 for e in experts])
                routing.topk_weights[token, :3] = shares.to(subject.device)
        for rank, output in zip(subject.fleet.played, subject.outputs(sharp, subject.marked, calls), strict=True):
            _same(output.double(), torch.full_like(output, 258.0).double(), f"256 + 1 + 1 in the output of rank {rank}")


DISPATCH_CHECKS: tuple[DispatchCheck, ...] = (
    EveryPair(),
    ExactlyOnce(),
    UndefinedRows(),
    NanTokens(),
    GarbageIds(),
    Interleaved(),
    TwoRuns(),
    Ownership(),
    Float32Sum(),
)
"""All that are tried with marker experts; `EqualsOneRank` has experts of its own."""


def _pairs(batch: Batch, num_experts: int) -> list[int]:
    """Pairs of each local expert in a batch."""
    if isinstance(batch, GroupedBatch | BatchedBatch):
        return [int(count) for count in batch.counts.tolist()]
    ids = batch.routing.topk_ids[active_slots(batch, num_experts)]
    return [int((ids == expert).sum()) for expert in range(num_experts)]


def _all_same(got: list[Tensor], wanted: list[Tensor], what: str) -> None:
    for one, other in zip(got, wanted, strict=True):
        _same(one.double(), other.double(), what)


def _same(got: Tensor, wanted: Tensor, what: str) -> None:
    wrong = (got != wanted).any(-1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        column = int((got[row] != wanted[row]).nonzero()[0])
        where = f"{int(wrong.sum())} of {len(wrong)} rows; row {row} column {column}"
        needed, found = float(wanted[row, column]), float(got[row, column])
        raise Nonconformance(what, figure(needed), f"{apart(found, needed)} ({where})")


def _unchanged(what: str, tensors: list[Tensor], before: list[Tensor]) -> None:
    for tensor, kept in zip(tensors, before, strict=True):
        now = as_bytes(tensor)
        if not torch.equal(now, kept):
            raise Nonconformance(what, "the same bytes", f"{int((now != kept).sum())} other bytes")


def _storage(values: Tensor) -> int:
    return values.untyped_storage().data_ptr()
