"""choose: the form and the tiles for a number of rows, from the problem and the machine alone; good without tuning.

Constants stand where they are used, with what they were measured on; the reasons are those of bytes (weights read
again), rows of an expert (what a tile holds, when products pay), bandwidth (how long that takes) and waves (how many
programs there are for the multiprocessors). `tests/tuning/test_cost_model.py` pins what comes out for the four layers
of docs/performance/hopper.md.
"""

from __future__ import annotations

from collections.abc import Collection

from moesaic.checks import whole_number
from moesaic.errors import TuningError
from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning.bandwidth import bandwidth
from moesaic.tuning.choices import FORMS, Choice, Product, Streamed, Vector
from moesaic.tuning.products import mean_rows, product
from moesaic.tuning.strips import pays, strips
from moesaic.tuning.tilings import step_for_mean, tilings
from moesaic.tuning.waves import fills


def pairs_of(problem: Problem, num_rows: int) -> int:
    """(token, slot) pairs of `num_rows` rows, which are tokens in a layout with routing."""
    return num_rows * problem.top_k if problem.layout.has_routing else num_rows


def choose(
    problem: Problem, machine: Machine, num_rows: int, forms: Collection[type[Choice]] = FORMS
) -> Vector | Streamed | Product:
    """The form for `num_rows` rows, at least one: tokens in a layout with routing, else rows of all experts.

    `forms`: those that the backend has, `Streamed` among them. Raises TuningError for a number that is no such one.
    """
    num_rows = whole_number("choose", "num_rows", num_rows, TuningError)
    pairs = pairs_of(problem, num_rows)
    if Product in forms and pairs >= mean_rows(machine) * problem.num_experts:
        found = product(problem, pairs)
        if fills(found, problem, machine, pairs):
            return found
    if Vector in forms and problem.layout.has_routing and pays(problem, num_rows, bandwidth(machine)):
        return strips(problem, num_rows)
    return streamed(problem, machine, pairs)


def streamed(problem: Problem, machine: Machine, num_pairs: int) -> Streamed:
    """The tiles for the mean rows of an expert, or narrower ones if their programs would not fill the machine."""
    known = [tiling for _, tiling in tilings(machine)]
    best = step_for_mean(problem, machine, num_pairs)
    filling = (known[step] for step in range(best, -1, -1) if fills(known[step], problem, machine, num_pairs))
    return next(filling, known[0])
