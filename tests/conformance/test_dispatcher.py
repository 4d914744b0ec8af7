"""The dispatcher kit: every loopback and `Local` pass it, and each check finds the defect that it is meant for."""

from dataclasses import dataclass, replace

import pytest
import torch

from moesaic import BatchedBatch, GroupedBatch, MoesaicError, PaddedStandardBatch, Routing, StandardBatch
from moesaic.conformance.dispatch_checks import DISPATCH_CHECKS
from moesaic.conformance.dispatcher import DispatcherConformance, short
from moesaic.conformance.equals_one_rank import EqualsOneRank
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.dispatch import Local
from moesaic.dispatch.fleet import Fleet, OneRank
from moesaic.dispatch.loopback import Loopback
from moesaic.dispatch.row_transports import Expanded, Slabs
from moesaic.dispatch.token_transports import Deduplicated, Gathered, RankMajor

UNEVEN = {"num_experts": 10, "num_ranks": 4, "hidden_multiple": 64}


class TestLocal(DispatcherConformance):
    fleet = OneRank(num_experts=10, num_ranks=1, dispatcher=Local())


class TestGathered(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=Gathered())


class TestDeduplicated(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=Deduplicated(max_tokens=8))
    hidden_sizes = (65, 128)


class TestRankMajor(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=RankMajor(max_tokens=8))
    hidden_sizes = (65, 128)


class TestExpanded(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=Expanded(alignment=8))
    hidden_sizes = (65, 128)


class TestExpandedWorstCase(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=Expanded(alignment=4, max_tokens=8))
    hidden_sizes = (65, 128)
    duplicate_ids = False


class TestExpandedWeighted(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=Expanded(), weight_on_input=True)
    hidden_sizes = (65, 128)


class TestSlabs(DispatcherConformance):
    fleet = Loopback(**UNEVEN, transport=Slabs(max_tokens=8))
    duplicate_ids = False


class TestSlabsWeightedOnMoreRanks(DispatcherConformance):
    fleet = Loopback(num_experts=7, num_ranks=7, transport=Slabs(max_tokens=8), weight_on_input=True)
    hidden_sizes = (65, 128)
    duplicate_ids = False


FLEETS = {
    c.__name__: c
    for c in (TestGathered, TestDeduplicated, TestRankMajor, TestExpanded, TestExpandedWorstCase, TestSlabs)
}


@dataclass(frozen=True, kw_only=True)
class Defective(Fleet[object]):
    """A loopback with one defect in what it hands out or in what it makes of what comes back."""

    inner: Loopback

    @property
    def layout(self):
        return self.inner.layout

    @property
    def played(self):
        return self.inner.played

    def dispatch_all(self, calls):
        return self.inner.dispatch_all(calls)

    def combine_all(self, rows, receipts):
        return self.inner.combine_all(rows, receipts)


class OffsetOfEvenRanks(Defective):
    """Ranks 2 and 3 begin at 4 and 6, as if each held as many experts as itself (F76)."""

    def dispatch_all(self, calls):
        shifted = [torch.where((r.topk_ids >= 4) & (r.topk_ids < 8), r.topk_ids + 2, r.topk_ids) for _, r in calls]
        return self.inner.dispatch_all(
            [(h, Routing(ids, r.topk_weights)) for ids, (h, r) in zip(shifted, calls, strict=True)]
        )


class LosesLastRank(Defective):
    """The last rank's contribution is missing (F78)."""

    def combine_all(self, rows, receipts):
        return self.inner.combine_all([*rows[:-1], torch.zeros_like(rows[-1])], receipts)


class HidesNan(Defective):
    """NaN in the experts' rows is taken as zero (F06)."""

    def combine_all(self, rows, receipts):
        return self.inner.combine_all([r.nan_to_num(nan=0.0) for r in rows], receipts)


class CombinesInTheRowsDtype(Defective):
    """Each sum is rounded to the dtype of the rows (F37)."""

    def combine_all(self, rows, receipts):
        none = [torch.zeros_like(r) for r in rows]
        total = None
        for rank in range(len(rows)):
            part = self.inner.combine_all([r if i == rank else none[i] for i, r in enumerate(rows)], receipts)
            total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
        return total


class ReadsUndefinedRows(Defective):
    """Rows that nobody defined are added in (F15)."""

    def combine_all(self, rows, receipts):
        outputs = self.inner.combine_all(rows, receipts)
        last = rows[0].reshape(-1, rows[0].shape[-1])[-1:]
        return [output + 0 * last if len(output) else output for output in outputs]


class ChangesWhatItIsGiven(Defective):
    """Inactive ids are rewritten in place (F27)."""

    def dispatch_all(self, calls):
        for _, routing in calls:
            routing.topk_ids.clamp_(max=self.num_experts)
        return self.inner.dispatch_all(calls)


class OneReceipt(Defective):
    """What combine needs is kept in the dispatcher (F93)."""

    last = []  # noqa: RUF012 - the state is the defect

    def dispatch_all(self, calls):
        delivered = self.inner.dispatch_all(calls)
        self.last[:] = [receipt for _, receipt in delivered]
        return delivered

    def combine_all(self, rows, receipts):
        del receipts
        return self.inner.combine_all(rows, self.last)


class LosesTheTailOfH(Defective):
    """Columns past the last whole 64 are lost (F24)."""

    def dispatch_all(self, calls):
        cut = [h.clone() for h, _ in calls]
        for h in cut:
            h[:, h.shape[1] // 64 * 64 :] = 0
        return self.inner.dispatch_all([(h, r) for h, (_, r) in zip(cut, calls, strict=True)])


class HandsOutTheInput(Defective):
    """The output is in the memory of the hidden states (F27)."""

    def dispatch_all(self, calls):
        delivered = self.inner.dispatch_all(calls)
        return [(b, (r, calls[i][0])) for i, (b, r) in enumerate(delivered)]

    def combine_all(self, rows, receipts):
        outputs = self.inner.combine_all(rows, [r for r, _ in receipts])
        return [given.copy_(output) for (_, given), output in zip(receipts, outputs, strict=True)]


class WeightsTwice(Defective):
    """The router weight is applied on the way there too (F31)."""

    def dispatch_all(self, calls):
        return self.inner.dispatch_all([(h, Routing(r.topk_ids, r.topk_weights * r.topk_weights)) for h, r in calls])


class WeightsOnTheWrongSide(Defective):
    """The router weight is on the input although nobody asked for it (F31)."""

    def dispatch_all(self, calls):
        return replace(self.inner, weight_on_input=True).dispatch_all(calls)


class AddsInAnotherOrder(Defective):
    """The order of the sum, and with it the bits, differ from run to run (F94)."""

    calls = []  # noqa: RUF012 - the state is the defect

    def combine_all(self, rows, receipts):
        self.calls.append(None)
        noise = 2**-20 * len(self.calls)
        return [o + noise * (o != 0) for o in self.inner.combine_all(rows, receipts)]


class TakesGarbageForTheLastExpert(Defective):
    """The id -1 counts from the end (F14)."""

    def dispatch_all(self, calls):
        last = self.num_experts - 1
        ids = [torch.where(r.topk_ids == -1, last, r.topk_ids) for _, r in calls]
        weights = [torch.nan_to_num(r.topk_weights, nan=1.0) for _, r in calls]
        return self.inner.dispatch_all([(h, Routing(i, w)) for (h, _), i, w in zip(calls, ids, weights, strict=True)])


class PresentsTheTailAsLive(Defective):
    """The undefined tail counts as rows of the first expert (F19)."""

    def dispatch_all(self, calls):
        delivered = self.inner.dispatch_all(calls)
        return [(self.worse(batch), receipt) for batch, receipt in delivered]

    def worse(self, batch):
        match batch:
            case GroupedBatch(rows, offsets, counts, alignment):
                counts = counts.clone()
                counts[-1] = len(rows) - offsets[-1]
                return GroupedBatch(rows, offsets, counts, alignment)
            case BatchedBatch(rows, counts):
                return BatchedBatch(rows, torch.full_like(counts, rows.shape[1]))
            case PaddedStandardBatch():
                return StandardBatch(batch.hidden_states, batch.routing)
        return batch


EVERYWHERE = tuple(FLEETS)
DEFECTS = [
    (OffsetOfEvenRanks, {"every_pair", "exactly_once", "equals_one_rank"}, EVERYWHERE),
    (LosesLastRank, {"exactly_once", "equals_one_rank"}, EVERYWHERE),
    (HidesNan, {"nan_tokens"}, EVERYWHERE),
    (CombinesInTheRowsDtype, {"float32_sum"}, EVERYWHERE),
    (
        ReadsUndefinedRows,
        {"undefined_rows"},
        ("TestDeduplicated", "TestRankMajor", "TestExpandedWorstCase", "TestSlabs"),
    ),
    (ChangesWhatItIsGiven, {"ownership"}, EVERYWHERE),
    (OneReceipt, {"interleaved"}, EVERYWHERE),
    (LosesTheTailOfH, {"exactly_once", "equals_one_rank"}, EVERYWHERE),
    (HandsOutTheInput, {"ownership"}, EVERYWHERE),
    (WeightsTwice, {"exactly_once", "equals_one_rank"}, EVERYWHERE),
    (WeightsOnTheWrongSide, {"equals_one_rank"}, ("TestExpanded", "TestExpandedWorstCase", "TestSlabs")),
    (AddsInAnotherOrder, {"two_runs"}, EVERYWHERE),
    (TakesGarbageForTheLastExpert, {"every_pair", "garbage_ids"}, EVERYWHERE),
    (PresentsTheTailAsLive, {"every_pair"}, ("TestDeduplicated", "TestExpandedWorstCase", "TestSlabs")),
]


def finds(kit, fleet, name):
    """Whether the check of that name finds something in a fleet; the widest rows are left out."""
    chosen = type(kit.__name__, (kit,), {"fleet": fleet, "hidden_sizes": (65,)})
    for check, traffic in chosen().trials():
        if check.name == name:
            try:
                check.run(FleetSubject(fleet, torch.device("cpu")), traffic)
            except MoesaicError:  # a defect may also show as an error of its own
                return True
    return False


@pytest.mark.parametrize(
    ("defect", "checks", "kit"),
    [(d, checks, FLEETS[name]) for d, checks, names in DEFECTS for name in names],
    ids=lambda v: v.__name__ if isinstance(v, type) else None,
)
def test_a_defect_is_found_by_the_checks_that_are_meant_for_it(defect, checks, kit):
    inner = kit.fleet
    fleet = defect(num_experts=inner.num_experts, num_ranks=inner.num_ranks, inner=inner)
    assert {name for name in checks if finds(kit, fleet, name)} == checks


@pytest.mark.parametrize("check", [*DISPATCH_CHECKS, EqualsOneRank()], ids=lambda c: c.name)
def test_a_fleet_without_a_defect_is_not_accused(check):
    fleet = Defective(num_experts=10, num_ranks=4, inner=TestSlabs.fleet)
    assert not finds(TestSlabs, fleet, check.name)


def test_every_check_is_meant_for_a_defect():
    names = {check.name for check in (*DISPATCH_CHECKS, EqualsOneRank())}
    assert names == set().union(*(checks for _, checks, _ in DEFECTS))


def test_names_of_tests_are_distinct():
    names = [f"{check.name} {short(traffic)} {traffic.inactive}" for check, traffic in TestGathered().trials()]
    assert len(set(names)) == len(names)
