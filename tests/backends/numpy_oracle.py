"""The experts of a layer in numpy float64: loops over tokens and slots, no line shared with the package."""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 0.5 * (1 + np.tanh(x / 2))


def gelu(x, approximate):
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def swiglu(g, u, alpha, beta, limit):
    if limit is not None:
        g, u = np.minimum(g, limit), np.maximum(np.minimum(u, limit), -limit)
    return g * sigmoid(alpha * g) * (u + beta)


def swiglu_step(g, u, limit):
    return np.minimum(g * sigmoid(g), limit) * np.clip(u, -limit, limit)


def situ(g, u, gate_scale, linear_scale, limit):
    if limit is not None:
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    if linear_scale is not None:
        u = linear_scale * np.tanh(u / linear_scale)
    return gate_scale * np.tanh(g / gate_scale) * sigmoid(g) * u


def powlu(g, u, exponent, limit):
    base = np.where(g > 0, g, 1.0)
    a = np.where(g > 0, base ** (exponent / (np.sqrt(base) + 1)), g) * sigmoid(g)
    return a * u if limit is None else np.minimum(a, limit) * np.clip(u, -limit, limit)


def relu2(x, limit):
    r = np.maximum(x, 0)
    return (r if limit is None else limit * np.tanh(r / limit)) ** 2


GATED = {
    "SwiGLU": swiglu,
    "SwiGLUStep": swiglu_step,
    "SiTU": situ,
    "GeGLU": lambda g, u, approximate: gelu(g, approximate) * u,
    "ReGLU": lambda g, u: np.maximum(g, 0) * u,
    "PowLU": powlu,
}
POINTWISE = {
    "ReLU2": relu2,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": gelu,
    "SiLU": lambda x: x * sigmoid(x),
    "Identity": lambda x: x,
}


def activated(name, constants, columns, expert):
    """The activation of one row; `constants` maps names to a number, None, a string or a tuple per expert."""
    own = {key: value[expert] if isinstance(value, tuple) else value for key, value in constants.items()}
    if name in GATED:
        half = len(columns) // 2
        return GATED[name](columns[:half], columns[half:], **own)
    return POINTWISE[name](columns, **own)


def one_row(row, expert, layer):
    """`norm(down @ act(gate_up @ row + b1) + b2)`; `layer` is a dict of arrays and of the problem's plain facts."""
    first = layer["gate_up"][expert] @ row
    if layer["gate_up_bias"] is not None:
        first = first + layer["gate_up_bias"][expert]
    second = layer["down"][expert] @ activated(layer["activation"], layer["constants"], first, expert)
    if layer["down_bias"] is not None:
        second = second + layer["down_bias"][expert]
    if layer["norm_eps"] is not None:
        second = second * layer["output_scale"]
        second = second / np.sqrt(np.mean(second**2) + layer["norm_eps"])
    return second


def tokens(x, ids, p, layer):
    """Standard: weighted and summed over the active slots."""
    out = np.zeros_like(x)
    for t in range(x.shape[0]):
        for k in range(ids.shape[1]):
            if 0 <= ids[t, k] < layer["num_experts"]:
                if layer["weight_on_input"]:
                    out[t] += one_row(p[t, k] * x[t], ids[t, k], layer)
                else:
                    out[t] += p[t, k] * one_row(x[t], ids[t, k], layer)
    return out
