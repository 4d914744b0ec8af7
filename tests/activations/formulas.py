"""The activations that the tests go through, and their value by the numpy oracle."""

import numpy as np

from moesaic import GELU, GeGLU, Identity, PowLU, ReGLU, ReLU, ReLU2, SiLU, SiTU, SwiGLU, SwiGLUStep
from tests.backends.numpy_oracle import GATED, POINTWISE

CASES = (
    SwiGLU(),
    SwiGLU(alpha=1.702, beta=1.0, limit=7.0),
    SwiGLU(limit=10.0),
    SwiGLU(alpha=-0.5, beta=-2.0),
    SwiGLUStep(),
    SwiGLUStep(limit=1.0),
    SiTU(),
    SiTU(gate_scale=2.0, linear_scale=None),
    SiTU(limit=5.0),
    GeGLU(),
    GeGLU("tanh"),
    ReGLU(),
    PowLU(),
    PowLU(exponent=3.0, limit=2.0),
    ReLU2(),
    ReLU2(limit=3.0),
    ReLU(),
    GELU(),
    GELU("tanh"),
    SiLU(),
    Identity(),
)


def expected(activation, rows):
    """The value of float64 `rows` by the oracle's formula, in float64; one constant for all experts."""
    name, constants = type(activation).__name__, activation.constants()
    with np.errstate(all="ignore"):
        if name in GATED:
            return GATED[name](*np.split(rows, 2, axis=-1), **constants)
        return POINTWISE[name](rows, **constants)
