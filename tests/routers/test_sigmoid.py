"""Sigmoid routers against the oracle, and the faults F39 and F40 of routing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic.routers import BiasedSigmoidTopK, SigmoidTopK
from tests.routers import oracle
from tests.routers.comparing import assert_routes, random_bias, random_logits, scores

SIZES = [(2, 1), (7, 7), (16, 1), (128, 6), (288, 8), (384, 8), (512, 22), (896, 16)]


@pytest.mark.parametrize(("num_experts", "top_k"), SIZES)
@pytest.mark.parametrize("renormalize", [False, True])
def test_biased_equals_the_oracle(num_experts, top_k, renormalize):
    logits, bias = random_logits(5, num_experts), random_bias(num_experts)
    router = BiasedSigmoidTopK(
        num_experts, top_k, bias=bias, renormalize=renormalize, epsilon=1e-15, scaling_factor=2.827
    )
    weighing = {"renormalize": renormalize, "epsilon": 1e-15, "scale": 2.827}
    expected = [oracle.biased(oracle.sigmoid(row), top_k, bias.tolist(), **weighing) for row in logits.tolist()]
    assert_routes(router(logits), expected)


@pytest.mark.parametrize(("num_experts", "top_k"), SIZES)
@pytest.mark.parametrize("renormalize", [False, True])
def test_unbiased_equals_the_oracle(num_experts, top_k, renormalize):
    logits = random_logits(5, num_experts)
    expected = [oracle.biased(oracle.sigmoid(row), top_k, renormalize=renormalize) for row in logits.tolist()]
    assert_routes(SigmoidTopK(num_experts, top_k, renormalize=renormalize)(logits), expected)


def test_bias_stays_out_of_the_weight():  # F39: 1.5 where it leaks
    router = BiasedSigmoidTopK(2, 1, bias=torch.tensor([0.0, 1.0]), renormalize=False)
    assert_routes(router(scores([0.6, 0.5])), [([1], [0.5])])


@pytest.mark.parametrize("epsilon", [0.0, 1e-20, 1e-15])
def test_scores_that_are_all_zero_weigh_zero(epsilon):  # F40: float32 sigmoid(-200) is 0
    logits = torch.full((1, 4), -200.0)
    for router in (
        BiasedSigmoidTopK(4, 2, bias=torch.zeros(4), epsilon=epsilon),
        SigmoidTopK(4, 2, renormalize=True, epsilon=epsilon),
    ):
        assert_routes(router(logits), [([0, 1], [0.0, 0.0])])


def test_subnormal_scores_are_renormalised():
    assert_routes(SigmoidTopK(3, 2, renormalize=True)(torch.full((1, 3), -88.0)), [([0, 1], [0.5, 0.5])])


def test_epsilon_is_added_to_the_sum():
    assert_routes(SigmoidTopK(2, 2, renormalize=True, epsilon=0.5)(torch.zeros(1, 2)), [([0, 1], [1 / 3, 1 / 3])])


def test_scaling_factor_is_applied_once():  # F32: 6.25 if twice, 1 if never
    router = BiasedSigmoidTopK(2, 1, bias=torch.zeros(2), scaling_factor=2.5)
    assert_routes(router(torch.tensor([[3.0, 1.0]])), [([0], [2.5])])


def test_saturated_logits_are_still_ordered_without_a_bias():
    assert_routes(SigmoidTopK(3, 1)(torch.tensor([[20.0, 30.0, 25.0]])), [([1], [1.0])])


def test_infinite_logits_are_scores_of_one_and_zero():
    inf = float("inf")
    router = BiasedSigmoidTopK(4, 2, bias=torch.zeros(4))
    assert_routes(router(torch.tensor([[-inf, 0.0, inf, -inf]])), [([2, 1], [2 / 3, 1 / 3])])
    assert_routes(SigmoidTopK(4, 2)(torch.tensor([[-inf, 0.0, inf, inf]])), [([2, 3], [1.0, 1.0])])


def test_one_nan_logit_is_selected_and_seen():
    logits = torch.tensor([[0.0, 1.0, float("nan"), 3.0], [0.0, 1.0, 2.0, 3.0]])
    routing = BiasedSigmoidTopK(4, 2, bias=torch.zeros(4), renormalize=False)(logits)
    assert routing.topk_ids.tolist() == [[2, 3], [3, 2]]
    assert routing.topk_weights.isnan().tolist() == [[True, False], [False, False]]


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([-1.0, 0.0, 0.25])), min_size=1, max_size=12), st.data())
def test_ties_go_to_the_lower_id(pairs, data):
    row, bias = [float(level) for level, _ in pairs], [b for _, b in pairs]
    top_k = data.draw(st.integers(1, len(row)))
    router = BiasedSigmoidTopK(len(row), top_k, bias=torch.tensor(bias))
    assert_routes(router(torch.tensor([row])), [oracle.biased(oracle.sigmoid(row), top_k, bias)])
