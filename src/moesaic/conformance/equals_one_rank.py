"""The output of every rank is that of one rank that holds all experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends import Reference
from moesaic.batches import Batch, Routing, StandardBatch
from moesaic.conformance.dispatch_checks import DispatchCheck
from moesaic.conformance.figures import excess
from moesaic.conformance.fleet_subject import FleetSubject
from moesaic.conformance.noise import deviation
from moesaic.conformance.tolerance import tolerance
from moesaic.conformance.traffic import Traffic
from moesaic.dispatch.fleet import Call, Fleet
from moesaic.errors import Nonconformance
from moesaic.layouts import Standard
from moesaic.weights import ExpertWeights

LARGE, NARROW = 1e3, 16.0
"""What one token of each rank is multiplied by, and where float16 would overflow in SwiGLU."""


@final
@dataclass(frozen=True)
class EqualsOneRank(DispatchCheck):
    """Experts that are no multiplication (SwiGLU), so that the side on which a weight is applied shows.

    Tokens and router weights are ordinary numbers, so that what is lost on the way shows; some weights are negative or
    above 2, and one token of each rank is large. Run with the router weight on the output and, if the fleet or its
    experts take it there, on the input. If the fleet rounds tokens, the one rank gets them rounded, and no wider noise
    is allowed. Meant for F18, F24, F31, F37, F50, F76 to F79.
    """

    name: ClassVar[str] = "equals_one_rank"
    meaning: ClassVar[str] = "every rank's output is that of one rank with all experts, within the measured noise"

    @override
    def run(self, subject: FleetSubject, traffic: Traffic) -> None:
        has_routing = subject.fleet.layout.has_routing
        for on_input in (False, True) if has_routing else (subject.fleet.weight_on_input,):
            self._compare(subject, traffic, on_input=on_input)

    def _compare(self, subject: FleetSubject, traffic: Traffic, *, on_input: bool) -> None:
        fleet, calls, weights = subject.fleet, _calls(subject, traffic), _weights(subject, traffic)
        held = partial(_held, subject, traffic, weights, on_input=on_input)
        got = torch.cat([output.cpu() for output in subject.outputs(traffic, held, calls)])
        wanted = _one_rank(subject, traffic, weights, on_input=on_input)
        exact = torch.cat([wanted[rank] for rank in fleet.played])
        is_large = torch.cat([_is_large(fleet, calls[rank][1]) for rank in fleet.played]).cpu()
        for rows, size in ((~is_large, "outputs"), (is_large, "outputs of large tokens")):
            scheme = subject.problem(traffic, 0).scheme
            allowed = tolerance(traffic.dtype, scheme, traffic.hidden_size, int(rows.sum()))
            found = deviation(got[rows], exact[rows])
            if found.exceeds(allowed):
                where = ", weight on the input" if on_input else ""
                raise Nonconformance(f"{size} against one rank{where}", *excess(found, allowed))


def _calls(subject: FleetSubject, traffic: Traffic) -> list[Call]:
    """The traffic's calls with normal numbers as tokens and router weights of any size up to 2.5 and of both signs."""
    calls: list[Call] = []
    for rank, (hidden, routing) in enumerate(subject.calls(traffic)):
        generator = torch.Generator().manual_seed(traffic.seed * 64 + rank)
        tokens = torch.randn(hidden.shape, generator=generator).to(subject.device)
        tokens[_is_large(subject.fleet, routing)] *= NARROW if traffic.dtype == torch.float16 else LARGE
        weights = 0.1 + torch.rand(routing.topk_weights.shape, generator=generator)
        weights[::3] *= -1.0  # of whole tokens, since what cancels leaves rounding
        weights[1::3, -1:] = 2.5
        kept = torch.where(routing.topk_weights.isnan(), routing.topk_weights, weights.to(subject.device))
        calls.append((tokens.to(traffic.dtype), replace(routing, topk_weights=kept)))
    return calls


def _is_large(fleet: Fleet[Any], routing: Routing) -> Tensor:
    """Bool `[T]`: the first token of a rank that has an active slot."""
    active = ((routing.topk_ids >= 0) & (routing.topk_ids < fleet.num_experts)).any(1)
    return active & (active.cumsum(0) == 1)


def _held(
    subject: FleetSubject, traffic: Traffic, weights: ExpertWeights, rank: int, batch: Batch, *, on_input: bool
) -> Tensor:
    """What the experts of `rank` make of `batch`."""
    own = slice(subject.fleet.experts(rank).start, subject.fleet.experts(rank).stop)
    held = ExpertWeights.plain(weights.gate_up.data[own], weights.down.data[own])
    return Reference().run(batch, held, subject.problem(traffic, rank, weight_on_input=on_input))


def _weights(subject: FleetSubject, traffic: Traffic) -> ExpertWeights:
    generator = torch.Generator().manual_seed(traffic.seed + 1)
    problem, experts = subject.problem(traffic, 0), subject.fleet.num_experts
    hidden, inner = problem.hidden_size, problem.intermediate_size
    gate_up = torch.randn(experts, problem.width, hidden, generator=generator) / hidden**0.5
    down = torch.randn(experts, hidden, inner, generator=generator) / inner**0.5
    return ExpertWeights.plain(*(t.to(traffic.dtype).to(subject.device) for t in (gate_up, down)))


def _one_rank(subject: FleetSubject, traffic: Traffic, weights: ExpertWeights, *, on_input: bool) -> list[Tensor]:
    """The exact output of every rank, on the CPU in float64."""
    problem = replace(
        subject.problem(traffic, 0),
        num_experts=subject.fleet.num_experts,
        dtype=torch.float64,
        layout=Standard(),
        weight_on_input=on_input,
    )
    wide = ExpertWeights.plain(weights.gate_up.data.double().cpu(), weights.down.data.double().cpu())
    calls = _calls(subject, traffic)
    hidden = subject.fleet.rounding.round_trip(torch.cat([rows for rows, _ in calls]).cpu()).double()
    ids = torch.cat([routing.topk_ids for _, routing in calls]).cpu()
    routing = Routing(ids, torch.cat([routing.topk_weights for _, routing in calls]).cpu())
    return list(Reference().run(StandardBatch(hidden, routing), wide, problem).split(traffic.tokens))
