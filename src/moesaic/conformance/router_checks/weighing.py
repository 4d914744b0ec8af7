"""With what weight: float32, finite, the scaling factor once, renormalised where that is stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.conformance.piece import PieceCheck, close, kept_form
from moesaic.conformance.router_checks.subject import RouterSubject, same_routing
from moesaic.errors import Nonconformance


@final
@dataclass(frozen=True)
class RoutingExamples(PieceCheck[RouterSubject]):
    """The catalogue's rows: F32, F34, F37 to F39."""

    name: ClassVar[str] = "examples"
    meaning: ClassVar[str] = "the routings that the publication states"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.examples else "no examples are stated"

    @override
    def run(self, subject: RouterSubject) -> None:
        for example in subject.examples:
            routing = subject.route(torch.tensor([example.logits] * 3))
            ids, weights = torch.tensor([example.topk_ids] * 3), torch.tensor([example.topk_weights] * 3)
            close(routing.topk_ids, ids, torch.zeros(1), f"topk_ids of the logits {example.logits}")
            allowed = 2e-5 * weights.double().abs()
            close(routing.topk_weights, weights, allowed, f"topk_weights of the logits {example.logits}")


@final
@dataclass(frozen=True)
class SumsToScaling(PieceCheck[RouterSubject]):
    """Renormalised weights sum to the scaling factor; others do not in every row. Meant for F32, F38."""

    name: ClassVar[str] = "sums_to_scaling"
    meaning: ClassVar[str] = "weights sum to the scaling factor if they are renormalised, and only then"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.renormalised is not None else "renormalised is not stated"

    @override
    def run(self, subject: RouterSubject) -> None:
        logits = torch.cat((subject.spread_logits(6), 0.2 * subject.spread_logits(6) - 4))
        sums = subject.route(logits).topk_weights.double().sum(-1)
        wanted = torch.full_like(sums, subject.scaling)
        if subject.renormalised:
            close(sums, wanted, 1e-5 * wanted.abs(), "the sum of a token's weights")
        elif bool(((sums - sums[0]).abs() < 1e-3 * sums[0].abs()).all()):
            raise Nonconformance("sums of weights that are not renormalised", "sums that differ", f"{sums.tolist()}")


@final
@dataclass(frozen=True)
class Float32Weights(PieceCheck[RouterSubject]):
    """Float32 logits against float64 logits: bfloat16 anywhere inside is seen. Meant for F37."""

    name: ClassVar[str] = "float32_weights"
    meaning: ClassVar[str] = "weights are float32 and as accurate as float32 is"

    @override
    def run(self, subject: RouterSubject) -> None:
        logits = subject.spread_logits(20, seed=5)
        got, wanted = subject.route(logits), subject.route(logits.double())
        kept_form(got.topk_weights, torch.float32, tuple(got.topk_ids.shape), "topk_weights of float32 logits")
        kept_form(got.topk_ids, torch.int32, tuple(got.topk_weights.shape), "topk_ids")
        if got.topk_ids.shape[0] != len(logits):
            raise Nonconformance("rows of topk_ids", f"{len(logits)}", f"{got.topk_ids.shape[0]}")
        same_routing(got, wanted, "float32 logits against float64 logits", error=3e-6)


@final
@dataclass(frozen=True)
class NarrowLogits(PieceCheck[RouterSubject]):
    """bfloat16 and float16 logits are those numbers in float32, and weights stay float32. Meant for F37."""

    name: ClassVar[str] = "narrow_logits"
    meaning: ClassVar[str] = "bfloat16 and float16 logits are routed as the same numbers in float32"

    @override
    def run(self, subject: RouterSubject) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            logits = subject.spread_logits().to(dtype)
            got, wanted = subject.route(logits), subject.route(logits.float())
            kept_form(got.topk_weights, torch.float32, tuple(got.topk_ids.shape), f"topk_weights of {dtype} logits")
            same_routing(got, wanted, f"{dtype} logits")


@final
@dataclass(frozen=True)
class FarLogits(PieceCheck[RouterSubject]):
    """Logits of -20 to -9 that differ give weights that differ. Meant for F37: logits that are cut on their way."""

    name: ClassVar[str] = "far_logits"
    meaning: ClassVar[str] = "logits far from zero are told apart"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.by_score else "by_score is not stated"

    @override
    def run(self, subject: RouterSubject) -> None:
        spread = subject.spread_logits(40, seed=7)
        rank = spread.argsort(-1).argsort(-1).float()
        if bool(_alike(subject.route(spread)).any()):
            return  # of one slot, or where a rule makes all weights one, none can differ
        routing = subject.route(-20.0 + 11.0 * rank / max(1, subject.columns - 1))
        alike = _alike(routing)
        if bool(alike.any()):
            weights = routing.topk_weights[int(alike.nonzero()[0])].tolist()
            raise Nonconformance("weights of logits from -20 to -9", "weights that differ", f"{weights}")


def _alike(routing: Routing) -> Tensor:
    """Bool `[T]`: tokens whose active slots all have one weight."""
    active = routing.topk_ids >= 0
    lowest = routing.topk_weights.masked_fill(~active, float("inf")).amin(-1)
    return lowest == routing.topk_weights.masked_fill(~active, float("-inf")).amax(-1)


@final
@dataclass(frozen=True)
class ZeroScores(PieceCheck[RouterSubject]):
    """Logits whose float32 scores all are 0 or all are 1 give finite weights. Meant for F40."""

    name: ClassVar[str] = "zero_scores"
    meaning: ClassVar[str] = "scores that underflow, or all are alike, give finite weights"

    @override
    def run(self, subject: RouterSubject) -> None:
        for size in (-200.0, -1e4, 0.0, 30.0, 200.0):
            weights = subject.route(torch.full((3, subject.columns), size)).topk_weights
            if not bool(weights.isfinite().all()):
                raise Nonconformance(
                    f"weights where all logits are {size:g}", "finite numbers", f"{weights[0].tolist()}"
                )
