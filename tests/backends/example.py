"""Example layers for the numeric tests: odd sizes, one expert that is always empty, weights of a real scale."""

import dataclasses

import numpy as np
import torch

from moesaic import BACKENDS, ExpertWeights, Machine, OutputNorm, Problem, Reference, Routing, SwiGLU

EMPTY_EXPERT = 2
"""No active slot ever names this expert."""

GARBAGE_IDS = (-1, 5, 10, -7, 2**31 - 1, -(2**31))
"""Ids that mark an inactive slot of a layer with five experts."""


def problem(*, backend=None, **changes):
    """Five experts, top-3, sizes that are multiples of 16 bytes but of no tile; float32 if served."""
    dtypes = (torch.float32,) if backend is None else backend.capabilities.dtypes
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    fields = {"num_experts": 5, "top_k": 3, "hidden_size": 72, "intermediate_size": 40, "activation": SwiGLU()}
    return Problem(**{**fields, "dtype": dtype, **changes})


SUBJECTS = [b for b in (Reference(), *BACKENDS) if not b.reasons_against(problem(backend=b), Machine.current("cpu"))]
"""The backends that run on this CPU; one that needs another processor declines and is not tested here."""


def subjects_and(dtypes):
    """Every subject with every dtype among `dtypes` that it declares."""
    return [(b, dtype) for b in SUBJECTS for dtype in dtypes if dtype in b.capabilities.dtypes]


def subject_id(value):
    """A readable test id."""
    return value.name if value in SUBJECTS else str(value)


def weights(case, seed=0):
    """Weights for `case`; every term is large enough that dropping it shows."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape, scale):
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * scale).to(case.dtype)

    e, h, i, width = case.num_experts, case.hidden_size, case.intermediate_size, case.width
    return ExpertWeights.plain(
        normal(e, width, h, scale=3 / h**0.5),
        normal(e, h, i, scale=1 / i**0.5),
        gate_up_bias=normal(e, width, scale=1.0) if case.bias else None,
        down_bias=normal(e, h, scale=1.0) if case.bias else None,
        output_scale=1 + normal(h, scale=0.3) if isinstance(case.output_norm, OutputNorm) else None,
    )


def rows(case, count, seed=1):
    """`count` rows of hidden states."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, case.hidden_size, generator=g, dtype=torch.float64).to(case.dtype)


def routing(case, num_tokens, seed=2, *, garbage=True):
    """Skewed routing with duplicate ids and, if `garbage`, inactive slots of every kind; one expert stays empty."""
    g = np.random.default_rng(seed)
    load = np.array([1 / (1 + e) if e != EMPTY_EXPERT else 0 for e in range(case.num_experts)])
    ids = g.choice(case.num_experts, size=(num_tokens, case.top_k), p=load / load.sum())
    if garbage:
        dead = g.random(ids.shape) < 0.25
        ids = np.where(dead, g.choice(GARBAGE_IDS, size=ids.shape), ids)
    p = g.random(ids.shape).astype(np.float32) + 0.1
    p_dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    return Routing(torch.tensor(ids, dtype=torch.int32), torch.tensor(p).to(p_dtype))


def as_oracle(case, given):
    """The layer as the dict of arrays that `numpy_oracle` reads."""

    def array(t):
        return None if t is None else t.double().numpy()

    return {
        "gate_up": array(given.gate_up.data),
        "down": array(given.down.data),
        "gate_up_bias": array(given.gate_up_bias),
        "down_bias": array(given.down_bias),
        "output_scale": array(given.output_scale),
        "norm_eps": None if case.output_norm is None else case.output_norm.eps,
        "activation": type(case.activation).__name__,
        "constants": {f.name: getattr(case.activation, f.name) for f in dataclasses.fields(case.activation)},
        "num_experts": case.num_experts,
        "weight_on_input": case.weight_on_input,
    }
