"""Softmax routers against the oracle, and the faults F37, F38 and F42 of routing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic.routers import BiasedSoftmaxTopK, ExpertScaledSoftmaxTopK, SoftmaxTopK, TopKSoftmax
from tests.routers import oracle
from tests.routers.comparing import assert_routes, probabilities, random_bias, random_logits

SIZES = [(1, 1), (2, 2), (7, 3), (60, 4), (128, 8), (512, 22), (896, 16)]


@pytest.mark.parametrize(("num_experts", "top_k"), SIZES)
@pytest.mark.parametrize("renormalize", [False, True])
def test_softmax_equals_the_oracle(num_experts, top_k, renormalize):
    logits = random_logits(5, num_experts)
    router = SoftmaxTopK(num_experts, top_k, renormalize=renormalize, epsilon=0.01, scaling_factor=2.5)
    weighing = {"renormalize": renormalize, "epsilon": 0.01, "scale": 2.5}
    expected = [oracle.biased(oracle.softmax(row), top_k, **weighing) for row in logits.tolist()]
    assert_routes(router(logits), expected)


@pytest.mark.parametrize(("num_experts", "top_k"), SIZES)
def test_bias_selects_and_never_weighs(num_experts, top_k):
    logits, bias = random_logits(5, num_experts), random_bias(num_experts)
    expected = [oracle.ernie(row, top_k, bias.tolist(), 0.0) for row in logits.tolist()]
    assert_routes(BiasedSoftmaxTopK(num_experts, top_k, bias=bias)(logits), expected)


@pytest.mark.parametrize(("num_experts", "top_k"), SIZES)
def test_expert_scale_comes_after_renormalisation(num_experts, top_k):
    logits, expert_scale = random_logits(5, num_experts), random_bias(num_experts) + 1
    expected = [oracle.gemma(row, top_k, expert_scale.tolist()) for row in logits.tolist()]
    assert_routes(ExpertScaledSoftmaxTopK(num_experts, top_k, expert_scale=expert_scale)(logits), expected)


@pytest.mark.parametrize(("num_experts", "top_k"), SIZES)
def test_softmax_over_the_selected_equals_the_oracle(num_experts, top_k):
    logits = random_logits(5, num_experts)
    expected = [oracle.top_k_softmax(row, top_k) for row in logits.tolist()]
    assert_routes(TopKSoftmax(num_experts, top_k)(logits), expected)


def test_renormalisation_is_a_choice_of_the_model():  # F38 (a)
    logits = probabilities([0.5, 0.3, 0.2])
    assert_routes(SoftmaxTopK(3, 2)(logits), [([0, 1], [0.5, 0.3])])
    assert_routes(SoftmaxTopK(3, 2, renormalize=True)(logits), [([0, 1], [0.625, 0.375])])


def test_softmax_over_all_is_not_softmax_over_the_selected():  # F38 (b)
    logits = torch.tensor([[1.0, 0.0, 0.0]])
    assert_routes(SoftmaxTopK(3, 1)(logits), [([0], [0.57611688])])
    assert_routes(TopKSoftmax(3, 1)(logits), [([0], [1.0])])


@pytest.mark.parametrize("router", [SoftmaxTopK(2, 1), TopKSoftmax(2, 1)])
def test_float32_logits_are_not_rounded(router):  # F37 (b): in bfloat16 both logits are 8
    assert router(torch.tensor([[8.0, 8.02]])).topk_ids.tolist() == [[1]]
    assert router(torch.tensor([[8.0, 8.02]], dtype=torch.bfloat16)).topk_ids.tolist() == [[0]]


def test_weights_are_float32_from_bfloat16_logits():  # F37 (a): bfloat16 weights would give 0.333984
    logits = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.bfloat16)
    assert_routes(
        SoftmaxTopK(4, 2)(logits), [oracle.biased(oracle.softmax([0.0, 1.0, 0.0, 0.0]), 2, renormalize=False)]
    )


def test_floor_bounds_the_divisor():
    logits, bias = probabilities([0.9, 0.06, 0.04]), torch.tensor([-1.0, 0.0, 0.0])
    assert_routes(BiasedSoftmaxTopK(3, 2, bias=bias)(logits), [([1, 2], [0.6, 0.4])])
    assert_routes(BiasedSoftmaxTopK(3, 2, bias=bias, floor=0.5)(logits), [([1, 2], [0.12, 0.08])])


def test_scaling_factor_is_applied_once():  # F32
    assert_routes(SoftmaxTopK(2, 1, renormalize=True, scaling_factor=2.5)(torch.tensor([[3.0, 1.0]])), [([0], [2.5])])


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=12), st.data())
def test_ties_go_to_the_lower_id(levels, data):
    row = [float(level) for level in levels]
    top_k = data.draw(st.integers(1, len(row)))
    logits = torch.tensor([row])
    assert_routes(SoftmaxTopK(len(row), top_k)(logits), [oracle.biased(oracle.softmax(row), top_k, renormalize=False)])
    assert_routes(TopKSoftmax(len(row), top_k)(logits), [oracle.top_k_softmax(row, top_k)])


def test_infinite_logits_follow_the_formula():
    inf = float("inf")
    assert_routes(SoftmaxTopK(3, 2)(torch.tensor([[0.0, -inf, 0.0]])), [([0, 2], [0.5, 0.5])])
    plus = SoftmaxTopK(3, 2)(torch.tensor([[0.0, inf, 0.0], [0.0, 1.0, 0.0]]))
    assert plus.topk_ids.tolist() == [[0, 1], [1, 0]]
    assert plus.topk_weights[0].isnan().all()
    assert plus.topk_weights[1].isfinite().all()
    assert TopKSoftmax(3, 2)(torch.tensor([[0.0, inf, 0.0]])).topk_ids.tolist() == [[1, 0]]
