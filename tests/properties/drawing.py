"""What the property tests draw: activations as kind and constants, and arrays from a seed."""

from hypothesis import strategies as st

from moesaic import GELU, GeGLU, Identity, PowLU, ReGLU, ReLU, ReLU2, SiLU, SiTU, SwiGLU, SwiGLUStep

seeds = st.integers(0, 2**32 - 1)


def _numbers(low, high):
    return st.floats(low, high, width=32, allow_subnormal=False)


def _each(element, num_experts):
    """One number for all experts, or one for each."""
    return element | st.tuples(*[element] * num_experts)


@st.composite
def activations(draw, num_experts):
    """(class, constants by name); the test builds the value."""
    anything, above = _each(_numbers(-3, 3), num_experts), _each(_numbers(0.125, 12), num_experts)
    maybe = st.none() | above
    fields = {
        SwiGLU: {"alpha": anything, "beta": anything, "limit": maybe},
        SwiGLUStep: {"limit": above},
        SiTU: {"gate_scale": above, "linear_scale": maybe, "limit": maybe},
        GeGLU: {"approximate": st.sampled_from(["none", "tanh"])},
        ReGLU: {},
        PowLU: {"exponent": above, "limit": maybe},
        ReLU2: {"limit": maybe},
        ReLU: {},
        GELU: {"approximate": st.sampled_from(["none", "tanh"])},
        SiLU: {},
        Identity: {},
    }
    kind = draw(st.sampled_from(list(fields)))
    return kind, {name: draw(values) for name, values in fields[kind].items()}


def normal(generator, *shape, scale=1.0):
    return generator.normal(size=shape) * scale
