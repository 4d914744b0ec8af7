"""A backend that chooses by size and runs on a CPU: the oracle, spoiled for choices that are to be wrong; its clock.

With a small layer for it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from moesaic import Machine, Problem, Reference, SwiGLU
from moesaic.backends.tunable import Tunable
from moesaic.cli.clocks import Clock
from moesaic.cli.synthetic_layer import random_weights
from moesaic.cli.tune_bench import Layer
from moesaic.cli.tune_layer import Means, tune_layer
from moesaic.tuning import FORMS, Budget, candidates

CPU = torch.device("cpu")
PROBLEM = Problem(
    num_experts=5, top_k=2, hidden_size=64, intermediate_size=40, activation=SwiGLU(limit=7.0), dtype=torch.bfloat16
)
HERE = Machine.current("cpu")


@dataclass(frozen=True)
class Spoiled(Tunable):
    """`wrong`: choice -> what becomes of its rows. `ran`: the choice of each call. `computed`: a batch and its rows."""

    name: ClassVar = "spoiled"
    capabilities: ClassVar = Reference.capabilities
    forms: ClassVar = FORMS

    wrong: dict = field(default_factory=dict, compare=False)
    ran: list = field(default_factory=list, compare=False)
    computed: list = field(default_factory=list, compare=False)

    def prepare(self, weights, problem):
        return weights, self.choosing.chooser(self.task(problem, Machine.current("cpu")))

    def canonical(self, prepared, problem):
        return prepared[0]

    def tensors(self, prepared):
        return prepared[0].tensors

    def run(self, batch, prepared, problem):
        weights, chooser = prepared
        choice = chooser(batch.rows.shape[:-1].numel())
        self.ran.append(choice)
        if not self.computed or self.computed[0] is not batch:
            self.computed[:] = batch, Reference().run(batch, weights, problem)
        return self.wrong.get(choice, torch.clone)(self.computed[1])

    def workspace(self, problem, num_rows):
        return Reference().workspace(problem, num_rows)


class ToldClock(Clock):
    """`seconds_of`: what a call by a choice takes; others 10 us. `now` runs with the calls, and `checked` a call."""

    def __init__(self, backend, seconds_of=None):
        self.backend, self.seconds_of, self.now = backend, seconds_of or {}, 0.0

    def seconds(self, call):
        call()
        taken = self.seconds_of.get(self.backend.ran[-1], 10e-6)
        self.now += 1.0
        return taken

    def recorded(self, call):
        return call


def tried(rows, backend=None, problem=PROBLEM):
    """The cost model's choice, and the others."""
    first, *others = candidates((backend or Spoiled()).task(problem, HERE), rows)
    return first, others


def tuned(tmp_path, backend, clock, *, counts=(1, 8, 90), seconds=1e9, again=False, problem=PROBLEM):
    layer = Layer(backend, problem, HERE, random_weights(problem, CPU))
    means = Means(CPU, clock, tmp_path, again)
    budget = Budget.of(seconds, lambda: clock.now)
    return list(tune_layer(layer, counts, means, budget, lambda tokens, share: None))
