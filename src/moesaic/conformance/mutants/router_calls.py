"""Wrong routers whose rule is right: what they do to their inputs, to other rows and to small or strange batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.batches import Routing
from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.router_steps import HonestRouter, RouterSteps, of_router
from moesaic.routers import Router, SoftmaxTopK
from moesaic.routers.fields import count


@final
@dataclass(frozen=True, eq=False)
class WeightsInBfloat16(RouterSteps):
    """Weights are packed to bfloat16 and widened."""

    @override
    def scaled(self, weights: Tensor) -> Tensor:
        return weights if weights.dtype == torch.float64 else weights.bfloat16().float()


@final
@dataclass(frozen=True, eq=False)
class ComputedAsTheyCome(RouterSteps):
    """bfloat16 logits are scored in bfloat16."""

    @override
    def read(self, logits: Tensor) -> Tensor:
        if logits.dtype in (torch.bfloat16, torch.float16):
            return torch.logit(torch.sigmoid(logits).float())
        return logits


@final
@dataclass(frozen=True, eq=False)
class LogitsInPlace(RouterSteps):
    """Computed in float64 in place, which is the caller's memory where logits are float64 already."""

    @override
    def score(self, logits: Tensor) -> Tensor:
        return logits.double().sigmoid_().to(logits.dtype)


@final
@dataclass(frozen=True, eq=False)
class WholeBatch(RouterSteps):
    """Scores are centred on the mean of the batch, as a load-balancing rule of training does."""

    @override
    def weigh(self, scores: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
        common = torch.nan_to_num(scores).mean(0, keepdim=True).expand_as(scores) if len(scores) > 40 else 0.0
        return (scores + 1e-3 * common).gather(-1, ids)


@final
@dataclass(frozen=True, eq=False)
class ZeroByZero(RouterSteps):
    """Weights are divided by their sum, also where it is zero."""

    @override
    def renormalised(self, weights: Tensor) -> Tensor:
        return weights / weights.sum(-1, keepdim=True)


@final
@dataclass(frozen=True, eq=False)
class FailsWithoutTokens(RouterSteps):
    """The largest score of the batch is looked for, and there is none without tokens."""

    @override
    def score(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits).clamp(max=torch.sigmoid(logits.nan_to_num().max()))


@final
@dataclass(frozen=True, eq=False)
class ReadsOnTheHost(RouterSteps):
    """Whether a weight is zero is asked on the host."""

    @override
    def renormalised(self, weights: Tensor) -> Tensor:
        total = weights.sum(-1, keepdim=True)
        return weights / (total if bool((total != 0).all()) else total.masked_fill(total == 0, 1.0))


@final
@dataclass(frozen=True, eq=False)
class AnyNumberOfExperts(RouterSteps):
    """Logits of other experts are routed as they come."""

    @override
    def check(self, logits: Tensor) -> None:
        return

    @override
    def choice(self, scores: Tensor) -> Tensor:
        return scores


@final
@dataclass(frozen=True, eq=False)
class TwoEqualOnesDiffer(Router):
    """Holds numbers only, and is compared by identity."""

    num_experts: int = field(default=8, metadata=count())
    top_k: int = field(default=3, metadata=count())

    @override
    def __call__(self, logits: Tensor, token_ids: Tensor | None = None) -> Routing:
        return SoftmaxTopK(self.num_experts, self.top_k)(logits)


PLAIN = HonestRouter()

WRONG_CALLS: tuple[Mutant, ...] = (
    of_router("F25_router_fails_without_tokens", FailsWithoutTokens(), "no_tokens", PLAIN),
    of_router("F27_logits_in_place", LogitsInPlace(), "logits_unchanged", PLAIN),
    of_router("F37_weights_in_bfloat16", WeightsInBfloat16(), "float32_weights", PLAIN),
    of_router("F37_bfloat16_logits_in_bfloat16", ComputedAsTheyCome(), "narrow_logits", PLAIN),
    of_router("F40_zero_divided_by_zero", ZeroByZero(), "zero_scores", PLAIN),
    of_router("F41_any_number_of_experts", AnyNumberOfExperts(), "other_experts", PLAIN),
    of_router("F75_equal_routers_differ", TwoEqualOnesDiffer(), "one_value", SoftmaxTopK(8, 3)),
    of_router("F96_scores_of_the_whole_batch", WholeBatch(), "rows_alone", PLAIN),
    of_router("F98_router_reads_on_the_host", ReadsOnTheHost(), "nothing_on_the_host", PLAIN),
)
