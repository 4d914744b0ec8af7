"""too_large: what a case takes of memory before a backend sees it, so that the backend is not blamed for it."""

from __future__ import annotations

from moesaic.conformance.case import Case
from moesaic.layouts import GroupedContiguous
from moesaic.machine import Machine

BYTES = 32
"""Of a value at most: as drawn, in the dtype of the problem, in float64 for the oracle, a copy for the subject."""


def too_large(case: Case, machine: Machine) -> str | None:
    """Why the kit itself cannot make `case` on `machine`; None if it can."""
    problem = case.problem
    slots = case.num_tokens * problem.top_k
    rows = slots
    if isinstance(case.fed, GroupedContiguous):
        rows += 2 * case.fed.alignment * problem.num_experts
    elif not case.fed.has_routing:
        rows *= problem.num_experts
    columns = problem.hidden_size + problem.width + problem.intermediate_size
    needed = BYTES * (problem.num_experts * problem.num_weights + (rows + slots) * columns)
    if needed <= machine.memory_bytes:
        return None
    return f"the kit cannot make this case: it would take about {needed / 2**30:.3g} GiB of memory"
