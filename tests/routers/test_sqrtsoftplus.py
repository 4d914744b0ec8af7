"""The sqrt(softplus) router against the oracle."""

import math

import pytest
import torch

from moesaic.routers import SqrtSoftplusTopK
from moesaic.routers.sqrtsoftplus import sqrt_softplus
from tests.routers import oracle
from tests.routers.comparing import assert_routes, random_bias, random_logits


@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (7, 3), (256, 6), (384, 6), (896, 22)])
def test_equals_the_oracle(num_experts, top_k):  # F42: the kind, many experts, a large K
    logits, bias = random_logits(5, num_experts), random_bias(num_experts)
    router = SqrtSoftplusTopK(num_experts, top_k, bias=bias, epsilon=1e-20, scaling_factor=1.5)
    weighing = {"epsilon": 1e-20, "scale": 1.5}
    expected = [oracle.biased(oracle.sqrt_softplus(row), top_k, bias.tolist(), **weighing) for row in logits.tolist()]
    assert_routes(router(logits), expected)


def test_worked_example():
    """softplus of log(e - 1) is 1 and of log(e^4 - 1) is 4: scores 1 and 2."""
    logits = torch.tensor([[math.log(math.e - 1), math.log(math.e**4 - 1), -50.0]])
    assert_routes(SqrtSoftplusTopK(3, 2, bias=torch.zeros(3))(logits), [([1, 0], [2 / 3, 1 / 3])])


def test_bias_selects_and_never_weighs():
    router = SqrtSoftplusTopK(2, 1, bias=torch.tensor([0.0, 9.0]), scaling_factor=2.5)
    assert_routes(router(torch.tensor([[3.0, -3.0]])), [([1], [2.5])])


def test_large_and_small_logits_do_not_overflow():
    router = SqrtSoftplusTopK(3, 2, bias=torch.zeros(3))
    assert_routes(router(torch.tensor([[1e4, 9e4, -1e4]])), [([1, 0], [0.75, 0.25])])
    assert_routes(router(torch.full((1, 3), -200.0)), [([0, 1], [0.0, 0.0])])


def test_float64_is_exact_on_both_sides_of_torchs_threshold():
    for logit in (18.0, 20.0, 21.0, 30.0, 39.0, 41.0, 700.0):
        got = sqrt_softplus(torch.tensor(logit, dtype=torch.float64)).item()
        assert got == pytest.approx(math.sqrt(logit + math.log1p(math.exp(-logit))), rel=1e-15)
    assert sqrt_softplus(torch.tensor(math.inf)).item() == math.inf
