"""How many programs a choice starts: below half of the multiprocessors, most of a machine would look on."""

from __future__ import annotations

from moesaic.machine import Machine
from moesaic.problem import Problem
from moesaic.tuning.choices import Choice, Product, Streamed
from moesaic.tuning.products import COLUMNS, ROWS

FILLED = 0.5
"""Programs for each multiprocessor. None of the four layers that the constants were measured on comes below 0.97
(mixtral's second product in tiles of 256 columns); not measured on smaller ones."""


def programs(choice: Choice, problem: Problem, num_pairs: int) -> int:
    """Programs that the smaller of both products starts; at least 2^31 for a form that takes any number."""
    hidden, inner = problem.hidden_size, problem.intermediate_size
    match choice:
        case Streamed(up=up, down=down):
            return _tiles(choice.tile_rows, problem, num_pairs) * min(-(-inner // up[0]), -(-hidden // down[0]))
        case Product():
            return _tiles(ROWS, problem, num_pairs) * min(-(-problem.width // COLUMNS), -(-hidden // COLUMNS))
        case _:
            return 2**31


def fills(choice: Choice, problem: Problem, machine: Machine, num_pairs: int) -> bool:
    """Whether the programs of `choice` keep the machine busy."""
    return programs(choice, problem, num_pairs) >= FILLED * machine.processors


def _tiles(rows: int, problem: Problem, num_pairs: int) -> int:
    """Tiles of evenly routed pairs: each expert has its mean, or each pair its own expert."""
    experts = problem.num_experts
    return min(num_pairs, experts * -(-num_pairs // (experts * rows)))
