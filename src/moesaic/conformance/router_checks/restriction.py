"""What restricts or shifts the choice and has no part in the weights: groups of experts, and a correction bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from moesaic.conformance.piece import PieceCheck
from moesaic.conformance.router_checks.subject import RouterSubject, same_routing
from moesaic.errors import Nonconformance

LOW, PAIR, ALONE, STEP = -20.0, (0.9, 0.88), 1.0, 1e-3
"""Logits of an expert that counts for nothing, of two in one group, of one alone, and what tells groups apart. Any
score that grows with its logit, and no faster than an exponential, has the same order."""


@final
@dataclass(frozen=True)
class Groups(PieceCheck[RouterSubject]):
    """The chosen experts are of at most so many groups, also under a very negative bias. Meant for F33, F34."""

    name: ClassVar[str] = "groups"
    meaning: ClassVar[str] = "a token stays inside its groups"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.groups else "no groups are stated"

    @override
    def run(self, subject: RouterSubject) -> None:
        count, kept = subject.groups or (1, 1)
        size = subject.num_experts // count
        routers = [subject.router]
        if subject.bias is not None:
            routers.append(subject.with_field(subject.bias, getattr(subject.router, subject.bias) - 4.0))
        for router in routers:
            for logits in (subject.spread_logits(40), subject.spread_logits(40) - 30.0):
                ids = subject.route(logits, router).topk_ids
                for row in (ids // size).tolist():
                    if len(set(row)) > kept:
                        raise Nonconformance("the groups of one token's experts", f"at most {kept} of them", f"{row}")


@final
@dataclass(frozen=True)
class BestGroups(PieceCheck[RouterSubject]):
    """Groups with two good experts beside groups with one that is a little better. Meant for F33, F34."""

    name: ClassVar[str] = "best_groups"
    meaning: ClassVar[str] = "the best groups are kept, by the score that is stated"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        if not subject.groups or subject.group_score is None:
            return "no groups and group_score are stated"
        count, kept = subject.groups
        return "all groups are kept, or have one expert" if kept == count or subject.columns < 2 * count else None

    @override
    def run(self, subject: RouterSubject) -> None:
        count, kept = subject.groups or (1, 1)
        size = subject.num_experts // count
        router = subject.router
        if subject.bias is not None:
            router = subject.with_field(subject.bias, getattr(router, subject.bias) * 0.0)
        pairs = kept if subject.group_score == "top2" else count - kept
        for turn in range(count):
            of_pairs = {(turn + number) % count for number in range(pairs)}
            logits = torch.full((1, subject.columns), LOW)
            for group in range(count):
                best = PAIR if group in of_pairs else (ALONE,)
                logits[0, group * size : group * size + len(best)] = torch.tensor(best) + STEP * group
            best_groups = of_pairs if subject.group_score == "top2" else set(range(count)) - of_pairs
            got = {expert // size for expert in subject.route(logits, router).topk_ids[0].tolist()}
            if not got <= best_groups:
                raise Nonconformance(
                    f"the groups chosen by {subject.group_score}", f"of {sorted(best_groups)}", f"{sorted(got)}"
                )


@final
@dataclass(frozen=True)
class BiasOnlySelects(PieceCheck[RouterSubject]):
    """One number added to the whole bias changes nothing. Meant for F34 (a zero mask), F39 (it leaks into weights)."""

    name: ClassVar[str] = "bias_only_selects"
    meaning: ClassVar[str] = "the correction bias selects and never weighs"

    @override
    def applies(self, subject: RouterSubject) -> str | None:
        return None if subject.bias is not None else "no correction bias is stated"

    @override
    def run(self, subject: RouterSubject) -> None:
        name = subject.bias or ""
        bias, logits = getattr(subject.router, name), subject.spread_logits(40)
        wanted = subject.route(logits)
        for shift in (-2.0, 1.0, -8.0):
            got = subject.route(logits, subject.with_field(name, bias + shift))
            same_routing(got, wanted, f"the same router with {shift:g} added to all of {name}")
        lifted = bias.clone()
        lifted[subject.columns - 1] += 100.0
        chosen = subject.route(logits, subject.with_field(name, lifted)).topk_ids
        if subject.columns == subject.num_experts and not bool((chosen == subject.columns - 1).any(-1).all()):
            raise Nonconformance(f"topk_ids with 100 added to the last of {name}", "the last expert in each row", "not")
