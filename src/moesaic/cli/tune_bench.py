"""LayerBench: one batch of one layer, computed by any choice of a backend, checked against the oracle and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from moesaic.backends import Reference
from moesaic.backends.tunable import Tunable
from moesaic.batches import Batch, BatchedBatch, GroupedBatch, Routing
from moesaic.cli.agreement import defined_rows
from moesaic.cli.clocks import Clock
from moesaic.conformance.noise import Deviation, deviation
from moesaic.conformance.tolerance import tolerance
from moesaic.errors import LaunchError
from moesaic.layer import Experts, bind
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning import Always, Bench, Choice
from moesaic.weights import ExpertWeights

CHECKED = 1024
"""Most rows that are compared with the oracle's: spread evenly over all, the first and the last among them."""


@final
@dataclass(frozen=True)
class Layer:
    """What is tuned: a problem with weights on a machine, by one backend."""

    backend: Tunable
    problem: Problem
    machine: Machine
    weights: ExpertWeights

    def by(self, choice: Choice) -> Experts:
        """The layer that computes by `choice`, whatever the number of rows; weights are shared."""
        backend = replace(self.backend, choosing=Always(choice))
        return bind(self.problem, self.weights, machine=self.machine, backends=(backend,))


@final
@dataclass(frozen=True)
class Expected:
    """Of some `rows` of a batch the oracle's values [R, H] in float64, and how far from them a kernel may be."""

    rows: Tensor
    values: Tensor
    allowed: Deviation

    @classmethod
    def of(cls, layer: Layer, batch: Batch) -> Expected:
        """What the oracle computes; in a layout with routing it is given the rows that are compared only."""
        problem = layer.problem
        there = defined_rows(batch).flatten().nonzero().flatten()
        steps = torch.linspace(0, len(there) - 1, min(CHECKED, len(there)), device=there.device)
        rows = there[steps.round().long()]
        oracle = bind(
            replace(problem, graph_capture=False), layer.weights, machine=layer.machine, backends=(Reference(),)
        )
        values = oracle(_only(batch, rows))
        values = values if problem.layout.has_routing else values.reshape(-1, problem.hidden_size)[rows]
        length = max(problem.hidden_size, problem.intermediate_size)
        return cls(rows, values.double(), tolerance(problem.dtype, problem.scheme, length, len(rows)))

    def fault(self, output: Tensor) -> str:
        """How `output`, of the whole batch, differs by more than rounding; empty if it does not."""
        found = deviation(output.reshape(-1, output.shape[-1])[self.rows], self.values)
        if not found.exceeds(self.allowed):
            return ""
        return f"its rows are wrong: {found} from the oracle's, where rounding explains {self.allowed}"


@final
@dataclass(frozen=True)
class LayerBench(Bench):
    """`layer` on `batch`; calls are timed by `clock`, as a graph where it records one."""

    layer: Layer
    batch: Batch
    expected: Expected
    clock: Clock

    @override
    @torch.no_grad()
    def fault(self, choice: Choice) -> str:
        experts = self.layer.by(choice)
        try:
            return self.expected.fault(experts(self.batch))
        except LaunchError as fault:  # it asks for more than the device has; anything else is a fault of moesaic
            return f"it does not run: {fault}"

    @override
    @torch.no_grad()
    def timer(self, choice: Choice) -> Callable[[], float]:
        experts = self.layer.by(choice)
        recorded = self.clock.recorded(lambda: experts(self.batch))
        return lambda: self.clock.seconds(recorded)


def _only(batch: Batch, rows: Tensor) -> Batch:
    if isinstance(batch, GroupedBatch | BatchedBatch):
        return batch
    routing = Routing(batch.routing.topk_ids[rows], batch.routing.topk_weights[rows])
    return replace(batch, hidden_states=batch.hidden_states[rows], routing=routing)
