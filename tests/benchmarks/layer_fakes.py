"""A family of tiny layers whose contenders do what a test tells them, and a clock without time."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from layers.cells import Cell, Family
from layers.clock import Clock
from layers.conditions import Conditions
from layers.contender import Contender
from layers.course import Course
from layers.exact import exact, swiglu
from layers.plain import PlainFamily
from layers.traffic import Traffic


@dataclass
class StillClock(Clock):
    """Every call takes as many microseconds as it has runs behind it; `dead` devices fail for ever."""

    dead: list = field(default_factory=list)
    released: int = 0
    replays: int = 0

    def captured(self, calls):
        def run():
            self.replays += 1
            for call in calls:
                call()

        return run

    def microseconds(self, run):
        run()
        return 10.0

    def settle(self):
        if self.dead:
            raise RuntimeError("an illegal memory access was encountered")

    def release(self):
        self.released += 1


def right(batch, weights):
    return exact(batch, weights, swiglu)


@dataclass(frozen=True)
class Puppet(Contender):
    name: str
    answer: Callable = right
    at_bind: Callable = lambda: None
    is_own: bool = False
    tolerance: float | None = 0.01
    why: str = ""
    bindings: list = field(default_factory=list, hash=False, compare=False)

    @property
    def own(self):
        return self.is_own

    @property
    def missing(self):
        return self.why

    @property
    def versions(self):
        return {self.name: "1.0"}

    def bound(self, weights, problem):
        self.bindings.append(problem)
        self.at_bind()
        return lambda batch: lambda: self.answer(batch, weights)


@dataclass
class Puppets(Family):
    ours: tuple
    theirs: tuple
    checked_tokens = 4
    drawn: list = field(default_factory=list)

    def problem(self, cell):
        return PlainFamily().problem(cell)

    def weights(self, cell, device):
        self.drawn.append(cell)
        return PlainFamily().weights(cell, device)

    def own(self, cell, problem, device):
        return self.ours

    def peers(self, scheme):
        return self.theirs


def course(family, clock=None, budget=1e9, start=0.0, traffic=None):
    given = Conditions(
        device="cpu",
        clock=clock or StillClock(),
        traffic=traffic or Traffic(),
        rounds=3,
        peers=[peer.name for peer in family.theirs],
        budget=budget,
        start=start,
    )
    return Course(family, given)


def cells(*tokens):
    return [Cell(shape="tiny", scheme="bf16", tokens=number) for number in tokens]


def entries(found, cells):
    """All ("rows" or "not_run", row) pairs."""
    with torch.no_grad():
        return [entry for some in found.run(cells) for entry in some]
