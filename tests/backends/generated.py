"""Problems generated from a backend's own declaration: whatever it claims is run."""

import dataclasses

from moesaic import BatchedExperts, GroupedContiguous, OutputNorm, PaddedStandard, Standard
from tests.backends import example

MOVED = {
    "alpha": 1.702,
    "beta": 1.0,
    "limit": 1.5,
    "gate_scale": 2.0,
    "linear_scale": 3.0,
    "exponent": 1.5,
    "approximate": "tanh",
}
"""A value away from the default for every constant, inside the range where it changes the answer."""


def activations(backend):
    """Every accepted activation: by default, each free constant moved, and moved differently for each expert."""
    for accepts in backend.capabilities.activations:
        kind = accepts.activation
        yield kind()
        for name in (*accepts.scalar, *accepts.per_expert):
            yield kind(**{name: MOVED[name]})
        if accepts.per_expert:
            yield kind(**{n: tuple(MOVED[n] * (1 + 0.3 * e) for e in range(5)) for n in accepts.per_expert})


def produced_layouts(backend):
    """Every layout that may be fed to the backend, gaps and padding included."""
    grouped = (GroupedContiguous(alignment) for alignment in (1, 8, 64))
    every = (Standard(), PaddedStandard(), *grouped, BatchedExperts())
    return [p for p in every if any(layout.accepts(p) for layout in backend.capabilities.layouts)]


def problems(backend):
    """One axis at a time from a base problem, then a few combinations."""
    can = backend.capabilities
    base = example.problem(dtype=can.dtypes[-1])
    yield from (dataclasses.replace(base, activation=a) for a in activations(backend))
    for dtype in can.dtypes:
        for layout in produced_layouts(backend):
            yield dataclasses.replace(base, dtype=dtype, layout=layout)
    flags = {"bias": can.bias, "weight_on_input": can.weight_on_input}
    yield from (dataclasses.replace(base, **{name: True}) for name, declared in flags.items() if declared)
    if can.output_norm:
        yield dataclasses.replace(base, output_norm=OutputNorm(1e-5))
    if can.bias:
        for layout in produced_layouts(backend):
            norm = OutputNorm(1e-5) if can.output_norm else None
            yield dataclasses.replace(base, bias=True, layout=layout, output_norm=norm, dtype=can.dtypes[0])
    if can.row_bytes == 1:
        yield dataclasses.replace(base, hidden_size=65, intermediate_size=33, bias=can.bias)
    yield dataclasses.replace(base, hidden_size=184, intermediate_size=88, top_k=22, dtype=can.dtypes[0])
    yield dataclasses.replace(base, top_k=1)


def identify(value):
    """A readable test id."""
    return _short(value)


def _short(p):
    extras = [n for n in ("bias", "weight_on_input") if getattr(p, n)] + (["norm"] if p.output_norm else [])
    parts = [repr(p.activation), str(p.dtype)[6:], repr(p.layout), f"H{p.hidden_size}", f"K{p.top_k}", *extras]
    return "-".join(parts)
