"""A whole layer in numpy float64, from the equations: one row of one expert, and the sum over a token's slots."""

import numpy as np

from tests.properties import formulas


def expert_row(row, expert, facts):
    """`down act(gate_up row + b1) + b2`, normed where the layer has a norm; `facts` holds arrays and plain values."""
    first = facts["gate_up"][expert] @ row
    if facts["b1"] is not None:
        first = first + facts["b1"][expert]
    second = facts["down"][expert] @ formulas.value(facts["kind"], facts["constants"], first, expert)
    if facts["b2"] is not None:
        second = second + facts["b2"][expert]
    if facts["norm"] is not None:
        scaled = facts["norm_scale"] * second
        second = scaled / np.sqrt((scaled * scaled).mean() + facts["norm"])
    return second


def token_row(x, ids, weights, facts):
    """The sum over the active slots of one token."""
    total = np.zeros_like(x)
    for expert, weight in zip(ids, weights, strict=True):
        if not 0 <= expert < facts["num_experts"]:
            continue
        if facts["on_input"]:
            total = total + expert_row(weight * x, expert, facts)
        else:
            total = total + weight * expert_row(x, expert, facts)
    return total
