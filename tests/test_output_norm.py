"""OutputNorm against its formula in float64."""

import numpy as np
import pytest
import torch

from moesaic import OutputNorm
from moesaic.errors import ProblemError


@pytest.mark.parametrize("eps", [1e-6, 0.5, 0.0])
def test_the_scale_comes_before_the_norm(eps):
    rng = np.random.default_rng(0)
    rows, scale = rng.normal(size=(5, 7)), rng.normal(size=7)
    scaled = rows * scale
    wanted = scaled / np.sqrt((scaled**2).mean(axis=-1, keepdims=True) + eps)
    got = OutputNorm(eps)(torch.from_numpy(rows), torch.from_numpy(scale))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12)
    after = rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + eps) * scale
    assert np.abs(wanted - after).max() > 0.1  # RMSNorm's order is another function


def test_dtype_and_shape_are_those_of_the_rows():
    got = OutputNorm()(torch.ones(2, 3, 4), torch.ones(4, dtype=torch.bfloat16))
    assert got.dtype == torch.float32
    assert got.shape == (2, 3, 4)
    assert OutputNorm()(torch.ones(0, 4), torch.ones(4)).shape == (0, 4)


def test_a_row_of_zeros_stays_zero_and_nan_stays_nan():
    rows = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [3.0, 4.0]])
    got = OutputNorm()(rows, torch.ones(2))
    assert torch.equal(got[0], torch.zeros(2))
    assert torch.isnan(got[1]).all()
    assert torch.isfinite(got[2]).all()


@pytest.mark.parametrize("eps", [True, None, "1", float("nan"), float("inf"), -1e-6, 10**400], ids=lambda e: str(e)[:9])
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_eps_is_refused_by_name(eps):
    with pytest.raises(ProblemError, match=r"OutputNorm\.eps"):
        OutputNorm(eps)


def test_equal_norms_are_one_value():
    assert OutputNorm(1) == OutputNorm(1.0)
    assert repr(OutputNorm(1)) == "OutputNorm(eps=1.0)"
    assert eval(repr(OutputNorm())) == OutputNorm()  # noqa: S307
