"""A backend that chooses by size and runs on a CPU: the oracle, spoiled for choices that are to be wrong; its clock."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from moesaic import Machine, Reference
from moesaic.backends.tunable import Tunable
from moesaic.cli.clocks import Clock
from moesaic.tuning import FORMS


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
