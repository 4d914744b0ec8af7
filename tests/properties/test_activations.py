"""Every activation against its formula, for any constants and any rows, NaN and infinity among them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic import ACTIVATIONS
from tests.properties import formulas
from tests.properties.drawing import activations, seeds
from tests.unchecked import unchecked

EXPERTS = 3
ENDS = (-np.inf, -1e4, -80.0, -0.0, 0.0, 1e-30, 80.0, 1e4, np.inf, np.nan)


def rows_of(generator, width):
    """Eleven rows of normal numbers of several sizes, every tenth number one of the ends."""
    rows = generator.normal(size=(11, width)) * generator.choice([0.1, 3.0, 30.0], size=(11, 1))
    return np.where(generator.random(rows.shape) < 0.1, generator.choice(ENDS, size=rows.shape), rows)


def expected(kind, constants, rows, experts):
    return np.array([formulas.value(kind.__name__, constants, r, e) for r, e in zip(rows, experts, strict=True)])


def assert_near(got, wanted, rows, error):
    """Errors are measured by the inputs: a function of a number is as far off as the number's own rounding."""
    size = (1 + np.abs(np.nan_to_num(rows, posinf=0, neginf=0)).max(-1, keepdims=True)) ** 2
    with np.errstate(all="ignore"):
        near = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        near |= np.abs(got - wanted) <= error * (size + np.abs(wanted))
    assert near.all(), (got[~near][:3], wanted[~near][:3])


def test_every_kind_is_drawn():
    assert {*formulas.GATED, *formulas.PLAIN} == {kind.__name__ for kind in ACTIVATIONS}


@settings(max_examples=200)
@given(activations(EXPERTS), st.integers(1, 5), seeds)
def test_float64_rows_give_the_formula(drawn, size, seed):
    kind, constants = drawn
    generator = np.random.default_rng(seed)
    with unchecked():
        activation = kind(**constants)
        rows = rows_of(generator, activation.width(size))
        experts = generator.integers(EXPERTS, size=len(rows))
        got = activation(torch.tensor(rows), torch.tensor(experts)).numpy()
    assert_near(got, expected(kind, activation.constants(), rows, experts), rows, 1e-13)


@settings(max_examples=200)
@given(activations(EXPERTS), st.integers(1, 5), seeds, st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_narrower_rows_give_the_formula_to_float32(drawn, size, seed, dtype):
    kind, constants = drawn
    generator = np.random.default_rng(seed)
    with unchecked():
        activation = kind(**constants)
        rows = torch.tensor(rows_of(generator, activation.width(size))).to(dtype)
        experts = generator.integers(EXPERTS, size=len(rows))
        got = activation(rows, torch.tensor(experts, dtype=torch.int32))
    assert got.dtype == torch.float32
    exact = rows.double().numpy()
    assert_near(got.double().numpy(), expected(kind, activation.constants(), exact, experts), exact, 1e-6)


@settings(max_examples=200)
@given(activations(EXPERTS), seeds)
def test_the_experts_of_a_rank_keep_their_constants(drawn, seed):
    kind, constants = drawn
    generator = np.random.default_rng(seed)
    with unchecked():
        local = generator.integers(EXPERTS, size=int(generator.integers(1, 6)))
        activation = kind(**constants)
        rows = rows_of(generator, activation.width(3))
        places = generator.integers(len(local), size=len(rows))
        got = activation.select(local.tolist())(torch.tensor(rows), torch.tensor(places)).numpy()
    assert_near(got, expected(kind, activation.constants(), rows, local[places]), rows, 1e-13)
