"""A whole layer with rounded inputs in numpy float64, on the oracles of the formats and of the activations."""

import numpy as np

from moesaic import Plain
from tests.backends import numpy_oracle
from tests.quant import oracle
from tests.quant.examples import rule_of


def read_back(rows, inputs):
    """The rows as a projection reads them; all at once, since one scale may serve them all."""
    return rows if isinstance(inputs, Plain) or len(rows) == 0 else oracle.matrix(rows, rule_of(inputs))[2]


def read_weights(stack, weights, parts):
    """`[L, parts * rows, columns]` as stored, each part by itself."""
    if isinstance(weights, Plain):
        return stack
    apart = stack.reshape(len(stack), parts, -1, stack.shape[-1])
    return np.array([[oracle.matrix(m, rule_of(weights))[2] for m in expert] for expert in apart]).reshape(stack.shape)


def expert_rows(rows, experts, layer, inputs):
    """`down @ act(gate_up @ row + b1) + b2` for live rows and their experts; `layer` as numpy_oracle reads it."""
    first = []
    for row, e in zip(read_back(rows, inputs), experts, strict=True):
        columns = layer["gate_up"][e] @ row + (0 if layer["gate_up_bias"] is None else layer["gate_up_bias"][e])
        first.append(numpy_oracle.activated(layer["activation"], layer["constants"], columns, e))
    second = [
        layer["down"][e] @ row + (0 if layer["down_bias"] is None else layer["down_bias"][e])
        for row, e in zip(read_back(np.array(first), inputs), experts, strict=True)
    ]
    return np.array(second)


def tokens(x, ids, p, layer, inputs):
    """Standard: weighted and summed over the active slots, whose rows are the live ones."""
    active = [(t, k) for t, k in np.ndindex(ids.shape) if 0 <= ids[t, k] < layer["num_experts"]]
    factor = np.array([p[t, k] for t, k in active])[:, None]
    rows = np.array([x[t] for t, _ in active])
    on_input = layer["weight_on_input"]
    outputs = expert_rows(rows * factor if on_input else rows, [ids[t, k] for t, k in active], layer, inputs)
    total = np.zeros_like(x)
    for (t, _), row in zip(active, outputs if on_input else outputs * factor, strict=True):
        total[t] += row
    return total
