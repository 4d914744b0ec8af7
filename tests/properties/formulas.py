"""The table of activations in numpy float64, written from the definitions: gate and up in, value out."""

import math

import numpy as np


def sigma(x):
    """1 / (1 + exp(-x)) without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def silu(x):
    return x * sigma(x)


def phi(x):
    """The distribution function of the normal law."""
    return np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in np.ravel(x)]).reshape(np.shape(x))


def gelu(x, approximate):
    if approximate == "none":
        return x * phi(x)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x / 2 * (1 + np.tanh(inner))


def below(x, limit):
    return x if limit is None else np.minimum(x, limit)


def between(x, limit):
    return x if limit is None else np.maximum(-limit, np.minimum(limit, x))


def capped(x, scale):
    return x if scale is None else scale * np.tanh(x / scale)


def swiglu(g, u, alpha, beta, limit):
    g, u = below(g, limit), between(u, limit)
    return g * sigma(alpha * g) * (u + beta)


def swiglu_step(g, u, limit):
    return below(silu(g), limit) * between(u, limit)


def situ(g, u, gate_scale, linear_scale, limit):
    g, u = below(g, limit), between(u, limit)
    return capped(g, gate_scale) * sigma(g) * capped(u, linear_scale)


def powlu(g, u, exponent, limit):
    inside = np.where(g > 0, g, 1.0)
    a = np.where(g > 0, np.power(inside, exponent / (np.sqrt(inside) + 1)) * sigma(g), silu(g))
    return below(a, limit) * between(u, limit)


def relu(x):
    return np.where(np.isnan(x), x, np.where(x > 0, x, 0.0))


GATED = {
    "SwiGLU": swiglu,
    "SwiGLUStep": swiglu_step,
    "SiTU": situ,
    "GeGLU": lambda g, u, approximate: gelu(g, approximate) * u,
    "ReGLU": lambda g, u: relu(g) * u,
    "PowLU": powlu,
}
PLAIN = {
    "ReLU2": lambda x, limit: capped(relu(x), limit) ** 2,
    "ReLU": relu,
    "GELU": gelu,
    "SiLU": silu,
    "Identity": lambda x: x,
}


def value(kind, constants, columns, expert):
    """One row of float64 columns at `expert`, whose own constants stand in the tuples."""
    own = {name: c[expert] if isinstance(c, tuple) else c for name, c in constants.items()}
    with np.errstate(all="ignore"):
        if kind in GATED:
            gate, up = columns[: len(columns) // 2], columns[len(columns) // 2 :]
            return GATED[kind](gate, up, **own)
        return PLAIN[kind](columns, **own)
