"""Which experts a router chooses: distinct, in range whatever the logits, ties to the lower id."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.piece import PieceCheck
from moesaic.conformance.router_checks.subject import RouterSubject
from moesaic.errors import Nonconformance


@final
@dataclass(frozen=True)
class BadLogits(PieceCheck[RouterSubject]):
    """Rows of NaN and infinity get distinct ids in range, and touch no other row. Meant for F36."""

    name: ClassVar[str] = "bad_logits"
    meaning: ClassVar[str] = "NaN and infinite logits give distinct ids in range, and spare the other rows"

    @override
    def run(self, subject: RouterSubject) -> None:
        good, columns = subject.spread_logits(8), subject.columns
        for name, row in bad_rows(columns).items():
            logits = good.clone()
            logits[3] = row
            routing = subject.route(logits)
            ids = [int(e) for e in routing.topk_ids[3] if int(e) != -1 or columns == subject.num_experts]
            # A router with zero experts answers -1 for them; an inactive row is -1 throughout.
            if set(ids) == {-1}:
                ids = []
            if subject.by_score and (len(set(ids)) < len(ids) or not all(0 <= e < subject.num_experts for e in ids)):
                raise Nonconformance(
                    f"topk_ids of a row with {name}",
                    f"distinct ids from 0 to {subject.num_experts - 1}",
                    f"{routing.topk_ids[3].tolist()}",
                )
            others = torch.arange(8) != 3
            got, wanted = routing.topk_ids[others], subject.route(good).topk_ids[others]
            weights = routing.topk_weights[others], subject.route(good).topk_weights[others]
            if not torch.equal(got, wanted) or not torch.allclose(*weights, rtol=2e-6, atol=1e-8):
                raise Nonconformance(f"the rows beside one with {name}", "what they are alone", "another routing")


@final
@dataclass(frozen=True)
class NanIsSeen(PieceCheck[RouterSubject]):
    """A row of NaN has a NaN weight, or no active slot: a broken token does not pass for a sound one. Meant for F36."""

    name: ClassVar[str] = "nan_is_seen"
    meaning: ClassVar[str] = "a row with a NaN logit has a NaN weight, or no active slot"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.by_score else "by_score is not stated"

    @override
    def run(self, subject: RouterSubject) -> None:
        for column in (0, subject.columns - 1):
            logits = subject.spread_logits(4)
            logits[2, column] = math.nan
            routing = subject.route(logits)
            ids, weights = routing.topk_ids[2].tolist(), routing.topk_weights[2]
            identity = routing.identity_weights
            seen = bool(weights.isnan().any()) or (identity is not None and bool(identity[2].isnan()))
            if not seen and any(e >= 0 for e in ids):
                raise Nonconformance(
                    f"a row with NaN as logit {column}",
                    "a weight that is NaN, or inactive slots",
                    f"ids {ids} with weights {weights.tolist()}",
                )


@final
@dataclass(frozen=True)
class Ties(PieceCheck[RouterSubject]):
    """Equal logits go to the lower ids, rows alike. Without a bias, which would decide. Meant for F36, F94."""

    name: ClassVar[str] = "ties"
    meaning: ClassVar[str] = "ties go to the lower expert id"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        if not subject.by_score:
            return "by_score is not stated"
        return "the bias decides where logits are equal" if subject.has_bias else None

    @override
    def run(self, subject: RouterSubject) -> None:
        columns = subject.columns
        every = subject.route(torch.full((70, columns), 0.5)).topk_ids
        wanted = torch.arange(every.shape[1], dtype=torch.int32).expand_as(every)
        if columns == subject.num_experts and not torch.equal(every, wanted):
            wrong = int((every != wanted).any(-1).nonzero()[0])
            raise Nonconformance("topk_ids of equal logits", f"{wanted[0].tolist()}", f"{every[wrong].tolist()}")
        slots = every.shape[1]
        if subject.groups is None and slots < columns:
            logits = torch.full((1, columns), -2.0)
            logits[0, columns - slots - 1 :] = 1.5  # one more than there are slots
            got = [e for e in subject.route(logits).topk_ids[0].tolist() if e >= 0]
            first = [e for e in range(columns - slots - 1, columns - 1) if e < subject.num_experts]
            if got != first:
                raise Nonconformance("topk_ids of one tie more than slots", f"{first}", f"{got}")


@final
@dataclass(frozen=True)
class Highest(PieceCheck[RouterSubject]):
    """Without bias and groups the K highest logits are chosen, highest first, compared in float32. Meant for F37."""

    name: ClassVar[str] = "highest"
    meaning: ClassVar[str] = "the highest logits are chosen, compared in float32"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        if not subject.by_score:
            return "by_score is not stated"
        return "bias or groups take part in the choice" if subject.has_bias or subject.groups else None

    @override
    def run(self, subject: RouterSubject) -> None:
        spread = subject.spread_logits(40, seed=3)
        # Steps of .01 around 2: bfloat16 has steps of 1/64 there.
        rank = spread.argsort(-1).argsort(-1)
        far = (rank + 1 - subject.columns) * (20.0 / subject.columns)  # from -20 to 0, where sigmoids differ
        for logits in (spread, 2 + 0.01 * (rank - subject.columns / 2), far):
            got = subject.route(logits).topk_ids
            wanted = logits.argsort(-1, descending=True)[:, : got.shape[1]]
            wanted = wanted.masked_fill(wanted >= subject.num_experts, -1)
            if not torch.equal(got.long(), wanted):
                wrong = int((got != wanted).any(-1).nonzero()[0])
                raise Nonconformance(
                    f"topk_ids of the logits {logits[wrong].tolist()}",
                    f"{wanted[wrong].tolist()}",
                    f"{got[wrong].tolist()}",
                )


def bad_rows(columns: int) -> dict[str, torch.Tensor]:
    """Rows of logits that are not finite."""
    calm = torch.linspace(-1, 1, columns)
    one_nan, one_infinite = calm.clone(), calm.clone()
    one_nan[-1], one_infinite[0] = math.nan, math.inf
    mixed = calm.clone()
    mixed[::2] = math.nan
    mixed[1] = -math.inf
    return {
        "NaN throughout": torch.full((columns,), math.nan),
        "infinity throughout": torch.full((columns,), math.inf),
        "minus infinity throughout": torch.full((columns,), -math.inf),
        "one NaN": one_nan,
        "one infinity": one_infinite,
        "NaN and minus infinity": mixed,
        "one finite logit": torch.where(torch.arange(columns) == 1, 0.0, -math.inf),
    }
