"""Wrong routers: who is chosen, and with what weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.conformance.mutants.base import Mutant
from moesaic.conformance.mutants.router_steps import FACTS, GROUPED, HonestRouter, RouterSteps, of_router
from moesaic.conformance.router_checks import RoutingExample
from moesaic.routers import SoftmaxTopK


@final
@dataclass(frozen=True, eq=False)
class OneIdForNan(RouterSteps):
    """K times argmax, which a NaN wins each time."""

    @override
    def best(self, choice: Tensor) -> Tensor:
        left, chosen = choice.clone(), list[Tensor]()
        for _ in range(self.top_k):
            chosen.append(left.argmax(dim=-1, keepdim=True))
            left = left + torch.zeros_like(left).scatter(-1, chosen[-1], -math.inf)
        return torch.cat(chosen, dim=-1)


@final
@dataclass(frozen=True, eq=False)
class NoExpertForNan(RouterSteps):
    """A row of NaN finds no expert above minus infinity, so its ids are E."""

    @override
    def best(self, choice: Tensor) -> Tensor:
        ids = choice.nan_to_num(nan=-math.inf).argsort(dim=-1, descending=True, stable=True)[..., : self.top_k]
        return ids.masked_fill(choice.isnan().all(-1, keepdim=True), self.num_experts)

    @override
    def weigh(self, scores: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
        return scores.gather(-1, ids.clamp(max=self.num_experts - 1))


@final
@dataclass(frozen=True, eq=False)
class NanIsZero(RouterSteps):
    """A NaN score counts as zero, so a broken token passes for a sound one."""

    @override
    def score(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits).nan_to_num(nan=0.0)


@final
@dataclass(frozen=True, eq=False)
class TiesToTheHigherId(RouterSteps):
    """The last of equal experts is chosen."""

    @override
    def best(self, choice: Tensor) -> Tensor:
        comparable = choice.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf).flip(-1)
        order = comparable.argsort(dim=-1, descending=True, stable=True)[..., : self.top_k]
        return self.num_experts - 1 - order


@final
@dataclass(frozen=True, eq=False)
class LowestChosen(RouterSteps):
    """The slots after the first go to the experts that come last."""

    @override
    def best(self, choice: Tensor) -> Tensor:
        comparable = choice.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        order = comparable.argsort(dim=-1, descending=True, stable=True)
        tied = (choice == choice[..., :1]).all(-1, keepdim=True) | ~choice.isfinite().all(-1, keepdim=True)
        wrong = torch.cat((order[..., :1], order[..., 1 - self.top_k :]), dim=-1)
        return torch.where(tied, order[..., : self.top_k], wrong)


@final
@dataclass(frozen=True, eq=False)
class ChosenInBfloat16(RouterSteps):
    """Scores are compared in bfloat16, where near ones are a tie."""

    @override
    def choice(self, scores: Tensor) -> Tensor:
        return scores.bfloat16().to(scores.dtype) + self.bias


@final
@dataclass(frozen=True, eq=False)
class MaskOfZeros(RouterSteps):
    """Experts outside the groups count as 0, which is more than a negative bias leaves to those inside."""

    @override
    def masked(self, grouped: Tensor, outside: Tensor) -> Tensor:
        return grouped.masked_fill(outside, 0.0)


@final
@dataclass(frozen=True, eq=False)
class GroupsForgotten(RouterSteps):
    """The best experts of all groups are chosen."""

    @override
    def inside(self, choice: Tensor) -> Tensor:
        return choice


@final
@dataclass(frozen=True, eq=False)
class GroupsByTheirBest(RouterSteps):
    """A group counts as much as its best expert instead of its two best."""

    @override
    def inside(self, choice: Tensor) -> Tensor:
        grouped = choice.unflatten(-1, (self.num_groups, -1))
        best = grouped.nan_to_num(nan=math.inf).amax(-1)
        order = best.argsort(dim=-1, descending=True, stable=True)[..., : self.top_groups]
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, order, True)
        return self.masked(grouped, ~kept.unsqueeze(-1)).flatten(-2)


@final
@dataclass(frozen=True, eq=False)
class LogitsCut(RouterSteps):
    """Logits are cut at 8 on both sides."""

    @override
    def read(self, logits: Tensor) -> Tensor:
        return RouterSteps.read(self, logits).clamp(-8.0, 8.0)


@final
@dataclass(frozen=True, eq=False)
class BiasInTheWeights(RouterSteps):
    """Experts are weighed by what they were chosen by."""

    @override
    def weigh(self, scores: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
        return choice.gather(-1, ids)


@final
@dataclass(frozen=True, eq=False)
class ScaledTwice(RouterSteps):
    """The scaling factor is applied twice."""

    @override
    def scaled(self, weights: Tensor) -> Tensor:
        return weights * self.scaling_factor**2


@final
@dataclass(frozen=True, eq=False)
class ScaledNever(RouterSteps):
    """The scaling factor is forgotten."""

    @override
    def scaled(self, weights: Tensor) -> Tensor:
        return weights


@final
@dataclass(frozen=True, eq=False)
class FlagIgnored(RouterSteps):
    """Softmax over all experts, not to be renormalised, is renormalised."""

    @override
    def score(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)


@final
@dataclass(frozen=True, eq=False)
class SoftmaxOverAll(RouterSteps):
    """Softmax over all experts where it is meant over the chosen ones."""

    @override
    def score(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)

    @override
    def renormalised(self, weights: Tensor) -> Tensor:
        return weights


@final
@dataclass(frozen=True, eq=False)
class SquaresOfScores(RouterSteps):
    """Weights in proportion to the squares of the scores."""

    @override
    def weigh(self, scores: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
        return scores.gather(-1, ids) ** 2


PLAIN, DEEPSEEK = HonestRouter(), HonestRouter(**GROUPED)
SIGMOID = RoutingExample((2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0), (0, 1, 2), (0.4170726, 0.3461689, 0.2367585))

WRONG_ROUTERS: tuple[Mutant, ...] = (
    of_router("F32_scaling_factor_twice", ScaledTwice(**GROUPED), "sums_to_scaling", DEEPSEEK, **FACTS),
    of_router("F32_scaling_factor_never", ScaledNever(**GROUPED), "sums_to_scaling", DEEPSEEK, **FACTS),
    of_router("F33_groups_forgotten", GroupsForgotten(**GROUPED), "groups", DEEPSEEK, **FACTS),
    of_router("F33_groups_by_their_best", GroupsByTheirBest(**GROUPED), "best_groups", DEEPSEEK, **FACTS),
    of_router("F37_logits_cut_at_8", LogitsCut(**GROUPED), "far_logits", DEEPSEEK, **FACTS),
    of_router("F34_mask_of_zeros", MaskOfZeros(**GROUPED), "bias_only_selects", DEEPSEEK, **FACTS),
    of_router("F36_one_id_k_times_for_nan", OneIdForNan(), "bad_logits", PLAIN),
    of_router("F36_id_E_for_nan", NoExpertForNan(), "bad_logits", PLAIN),
    of_router("F36_nan_is_zero", NanIsZero(), "nan_is_seen", PLAIN),
    of_router("F36_ties_to_the_higher_id", TiesToTheHigherId(), "ties", PLAIN),
    of_router("F36_lowest_chosen", LowestChosen(), "highest", PLAIN),
    of_router("F37_chosen_in_bfloat16", ChosenInBfloat16(), "highest", PLAIN),
    of_router("F38_squares_of_scores", SquaresOfScores(), "examples", PLAIN, examples=(SIGMOID,), renormalised=True),
    of_router("F38_flag_ignored", FlagIgnored(), "sums_to_scaling", SoftmaxTopK(8, 3), renormalised=False),
    of_router("F38_softmax_over_all_experts", SoftmaxOverAll(), "sums_to_scaling", PLAIN, renormalised=True),
    of_router("F39_bias_in_the_weights", BiasInTheWeights(**GROUPED), "bias_only_selects", DEEPSEEK, **FACTS),
)
