"""Every activation against its formula in numpy float64, on ordinary and on special values."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moesaic import (
    ACTIVATIONS,
    GELU,
    GeGLU,
    Identity,
    PowLU,
    ReLU,
    ReLU2,
    SiTU,
    SwiGLU,
    SwiGLUStep,
)
from moesaic.errors import ActivationError
from tests.activations import formulas

SPECIAL = (-np.inf, -30.0, -2.0, -1.0, -1e-3, -0.0, 0.0, 0.5, 1.0, 3.0, 8.0, 50.0, np.inf, np.nan)
each = pytest.mark.parametrize("activation", formulas.CASES, ids=repr)


def special_rows(activation):
    """Every pair of special values as gate and up, or every value on its own."""
    if not activation.gated:
        return np.array(SPECIAL)[:, None]
    gate, up = np.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    return np.stack([gate.ravel(), up.ravel()], axis=-1)


def random_rows(activation, seed=0):
    return np.random.default_rng(seed).normal(0.0, 4.0, (37, activation.width(5)))


def test_every_activation_has_a_formula_and_a_case():
    assert {a.__name__ for a in ACTIVATIONS} == {*formulas.GATED, *formulas.POINTWISE}
    assert {type(case) for case in formulas.CASES} == set(ACTIVATIONS)
    assert all(a.gated == (a.__name__ in formulas.GATED) for a in ACTIVATIONS)


@each
@pytest.mark.parametrize("rows", [special_rows, random_rows])
def test_float64_is_the_formula(activation, rows):
    values = rows(activation)
    got = activation(torch.from_numpy(values))
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), formulas.expected(activation, values), rtol=1e-12, atol=1e-13)


@each
@pytest.mark.parametrize("rows", [special_rows, random_rows])
def test_float32_is_the_formula(activation, rows):
    values = rows(activation).astype(np.float32)
    got = activation(torch.from_numpy(values))
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), formulas.expected(activation, values.astype(float)), rtol=4e-6, atol=2e-6)


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_rows_are_computed_and_returned_in_float32(activation, dtype):
    rows = torch.from_numpy(random_rows(activation)).to(dtype)
    got = activation(rows)
    assert got.dtype == torch.float32
    assert torch.equal(got, activation(rows.float()))


@each
def test_nan_stays_nan_and_the_neighbour_is_untouched(activation):
    rows = torch.from_numpy(random_rows(activation)[:2]).float()
    clean = activation(rows)
    for column in range(rows.shape[1]):
        poisoned = rows.clone()
        poisoned[0, column] = float("nan")
        got = activation(poisoned)
        assert torch.isnan(got[0, column % 5])
        assert torch.equal(got[1:], clean[1:])


@each
def test_output_shares_no_memory_and_input_is_unchanged(activation):
    rows = torch.from_numpy(random_rows(activation))
    before = rows.clone()
    got = activation(rows)
    assert got.untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()
    assert torch.equal(rows, before)
    assert torch.equal(activation(rows), got)


@each
def test_leading_dimensions_and_no_rows(activation):
    rows = torch.from_numpy(random_rows(activation)).float()
    stacked = torch.stack([rows, rows.flip(0)])
    torch.testing.assert_close(activation(stacked), torch.stack([activation(rows), activation(rows.flip(0))]))
    assert activation(rows[:0]).shape == (0, 5)
    assert activation(rows[3]).shape == (5,)


@each
def test_gradients(activation):
    rows = torch.from_numpy(random_rows(activation, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(activation, (rows[:4],))


@pytest.mark.parametrize(
    ("activation", "gate", "up", "wanted"),
    [
        (SwiGLU(limit=10.0), 20.0, -30.0, -99.995),
        (SwiGLU(), 20.0, -30.0, -600.0),
        (SwiGLU(alpha=1.702, beta=1.0, limit=7.0), 1.0, 0.0, 0.8458),
        (SwiGLU(alpha=1.702, beta=1.0, limit=7.0), 2.0, 0.5, 2.9035),
        (SwiGLU(), 2.0, 0.5, 0.8808),
        (SwiGLU(alpha=1.0, beta=0.0, limit=3.0), 5.0, 5.0, 8.573),
        (SwiGLUStep(limit=1.0), 3.0, 1.0, 1.0),
        (SwiGLU(limit=1.0), 3.0, 1.0, 0.7311),
        (SwiGLU(), 2.0, -3.0, -5.285),
        (SwiGLU(limit=7.0), -40.0, 1.0, 0.0),  # the gate is clamped from above only: silu(-7) would be -0.0064
        (SiTU(), 8.0, 50.0, 92.904),
        (SiTU(), -2.0, 10.0, -2.0930),
        (GeGLU(), -1.0, 1.0, -0.15866),
        (PowLU(), float("inf"), 3.0, 3.0),
        (PowLU(), 0.0, 3.0, 0.0),
    ],
    ids=str,
)
def test_probes_of_known_faults(activation, gate, up, wanted):
    got = activation(torch.tensor([[gate, up]])).item()
    assert got == pytest.approx(wanted, rel=6e-5, abs=1e-6)


def test_probes_without_a_gate():
    assert GELU()(torch.tensor([-1.0])).item() == pytest.approx(-0.15866, rel=1e-4)
    assert ReLU()(torch.tensor([-1.0])).item() == 0.0
    assert ReLU2()(torch.tensor([2.0, -2.0])).tolist() == [4.0, 0.0]
    assert Identity()(torch.tensor([-2.0])).item() == -2.0


def test_situ_has_an_accurate_tanh():
    """Within 1e-4 everywhere; a tanh with an error of 2^-11 is off by 1e-2 after the factor 25."""
    gate, up = (grid.ravel() for grid in np.meshgrid(np.linspace(-12, 12, 97), np.linspace(-60, 60, 97)))
    rows = np.stack([gate, up], axis=-1).astype(np.float32)
    error = SiTU()(torch.from_numpy(rows)).numpy() - formulas.expected(SiTU(), rows.astype(float))
    assert np.abs(error).max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_constants_per_expert_are_those_of_the_rows_expert(dtype):
    each_expert = [SwiGLU(a, b, c) for a, b, c in zip((1, 1.702, 0.5), (0, 1, 2), (7, 3, 1), strict=True)]
    together = SwiGLU(alpha=(1.0, 1.702, 0.5), beta=(0.0, 1.0, 2.0), limit=(7.0, 3.0, 1.0))
    rows = torch.from_numpy(random_rows(together)).float()
    ids = torch.arange(37, dtype=dtype) * 5 % 3
    wanted = torch.stack([each_expert[e](row) for e, row in zip(ids.tolist(), rows, strict=True)])
    torch.testing.assert_close(together(rows, ids), wanted)
    torch.testing.assert_close(together(rows[None, :, :], ids[None, :]), wanted[None])


@pytest.mark.parametrize(
    "activation",
    [
        SwiGLUStep(limit=(1.0, 7.0)),
        SiTU(gate_scale=(4.0, 2.0), linear_scale=(25.0, 3.0), limit=(9.0, 1.0)),
        PowLU(exponent=(2.5, 3.0), limit=(1.0, 4.0)),
        ReLU2(limit=(2.0, 5.0)),
    ],
    ids=repr,
)
def test_every_constant_may_differ_between_experts(activation):
    rows = torch.from_numpy(random_rows(activation))
    for expert in (0, 1):
        ids = torch.full((37,), expert)
        alone = activation.select((expert,))
        assert alone.per_expert() == {}
        torch.testing.assert_close(activation(rows, ids), alone(rows))
    assert not torch.equal(activation(rows, torch.zeros(37).long()), activation(rows, torch.ones(37).long()))


class NothingFromTheHost(TorchDispatchMode):
    """Fails where a tensor is made from Python numbers: such a copy waits for the device and cannot be captured."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten.lift_fresh.default, "a tensor came from the host"
        return func(*args, **(kwargs or {}))


def test_constants_per_expert_are_made_on_the_device():
    activation = SwiGLU(alpha=(1.0, 1.0, 2.0), limit=(7.0, 5.0, 5.0))
    rows, ids = torch.ones(4, 6), torch.tensor([0, 1, 2, 1])
    with NothingFromTheHost():
        got = activation(rows, ids)
    assert torch.equal(got, activation(rows, ids))


def test_missing_expert_ids_and_odd_width_are_refused():
    with pytest.raises(ActivationError, match="expert_ids"):
        SwiGLU(limit=(1.0, 2.0))(torch.ones(3, 4))
    with pytest.raises(ActivationError, match="3 columns"):
        SwiGLU()(torch.ones(2, 3))
    assert ReLU()(torch.ones(2, 3)).shape == (2, 3)
