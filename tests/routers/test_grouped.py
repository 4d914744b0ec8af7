"""Group-limited routers against the oracle, and the faults F33, F34 and F41 of routing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic.errors import RouterError
from moesaic.routers import BiasedSigmoidTopK, GroupedSigmoidTopK, GroupedSoftmaxTopK, SoftmaxTopK
from tests.routers import oracle
from tests.routers.comparing import assert_routes, random_bias, random_logits, scores

SHAPES = [(4, 2, 2, 1), (6, 3, 2, 2), (12, 4, 3, 3), (256, 8, 8, 4), (160, 6, 8, 3), (288, 8, 1, 1), (896, 16, 16, 3)]
"""(num_experts, top_k, num_groups, top_groups)."""


def sum_of_two(choices):
    return choices[0] + choices[1]


def highest(choices):
    return choices[0]


@pytest.mark.parametrize(("num_experts", "top_k", "num_groups", "top_groups"), SHAPES)
@pytest.mark.parametrize("renormalize", [False, True])
def test_sigmoid_equals_the_oracle(num_experts, top_k, num_groups, top_groups, renormalize):
    logits, bias = random_logits(5, num_experts), random_bias(num_experts)
    router = GroupedSigmoidTopK(
        num_experts,
        top_k,
        num_groups=num_groups,
        top_groups=top_groups,
        bias=bias,
        renormalize=renormalize,
        epsilon=1e-20,
        scaling_factor=2.5,
    )
    expected = [
        oracle.grouped(
            oracle.sigmoid(row),
            top_k,
            num_groups,
            top_groups,
            sum_of_two,
            bias.tolist(),
            renormalize=renormalize,
            epsilon=1e-20,
            scale=2.5,
        )
        for row in logits.tolist()
    ]
    assert_routes(router(logits), expected)


@pytest.mark.parametrize(("num_experts", "top_k", "num_groups", "top_groups"), SHAPES)
@pytest.mark.parametrize("renormalize", [False, True])
def test_softmax_equals_the_oracle(num_experts, top_k, num_groups, top_groups, renormalize):
    logits = random_logits(5, num_experts)
    router = GroupedSoftmaxTopK(
        num_experts,
        top_k,
        num_groups=num_groups,
        top_groups=top_groups,
        renormalize=renormalize,
        scaling_factor=16.0,
    )
    expected = [
        oracle.grouped(oracle.softmax(row), top_k, num_groups, top_groups, highest, renormalize=renormalize, scale=16.0)
        for row in logits.tolist()
    ]
    assert_routes(router(logits), expected)


def test_the_groups_decide():
    """Expert 0 is the best, but the second group has the better pair; by the maximum the first group wins."""
    logits = scores([0.9, 0.1, 0.6, 0.55])
    two = GroupedSigmoidTopK(4, 2, num_groups=2, top_groups=1, bias=torch.zeros(4), renormalize=False)
    assert_routes(two(logits), [([2, 3], [0.6, 0.55])])
    one = GroupedSoftmaxTopK(4, 2, num_groups=2, top_groups=1)
    assert one(logits).topk_ids.tolist() == [[0, 1]]


def test_masked_groups_lose_to_a_negative_bias():  # F34: a mask of 0 selects experts 2 and 3
    router = GroupedSigmoidTopK(4, 2, num_groups=2, top_groups=1, bias=torch.full((4,), -1.0))
    assert_routes(router(scores([0.6, 0.5, 0.4, 0.3])), [([0, 1], [0.5454545, 0.4545455])])


def test_experts_that_do_not_divide_are_an_error():  # F33
    with pytest.raises(RouterError, match="6 experts do not divide into 4 equal groups"):
        GroupedSigmoidTopK(6, 2, num_groups=4, top_groups=2, bias=torch.zeros(6), scaling_factor=2.5)
    with pytest.raises(RouterError, match="6 experts do not divide into 4 equal groups"):
        GroupedSoftmaxTopK(6, 2, num_groups=4, top_groups=2)


def test_too_small_groups_are_an_error():  # F41
    with pytest.raises(RouterError, match="hold only 4"):
        GroupedSigmoidTopK(8, 5, num_groups=4, top_groups=2, bias=torch.zeros(8))
    with pytest.raises(RouterError, match="hold only 2"):
        GroupedSoftmaxTopK(8, 3, num_groups=8, top_groups=2)
    with pytest.raises(RouterError, match="at least 2 experts"):
        GroupedSigmoidTopK(4, 2, num_groups=4, top_groups=2, bias=torch.zeros(4))
    with pytest.raises(RouterError, match="top_groups is 3, but it needs at most num_groups=2"):
        GroupedSoftmaxTopK(4, 2, num_groups=2, top_groups=3)
    with pytest.raises(RouterError, match="num_groups is 0"):
        GroupedSoftmaxTopK(4, 2, num_groups=0, top_groups=1)


def test_all_groups_kept_is_no_limit():
    logits, bias = random_logits(9, 12), random_bias(12)
    limited = GroupedSigmoidTopK(12, 3, num_groups=4, top_groups=4, bias=bias)(logits)
    free = BiasedSigmoidTopK(12, 3, bias=bias)(logits)
    assert torch.equal(limited.topk_ids, free.topk_ids)
    assert torch.equal(limited.topk_weights, free.topk_weights)
    limited = GroupedSoftmaxTopK(12, 3, num_groups=12, top_groups=12)(logits)
    assert torch.equal(limited.topk_ids, SoftmaxTopK(12, 3)(logits).topk_ids)


def test_a_nan_group_is_kept():
    logits = torch.tensor([[3.0, 3.0, 0.0, 0.0, float("nan"), -9.0]])
    routing = GroupedSigmoidTopK(6, 2, num_groups=3, top_groups=1, bias=torch.zeros(6))(logits)
    assert routing.topk_ids.tolist() == [[4, 5]]
    assert routing.topk_weights.isnan().all()


@given(st.integers(1, 4), st.integers(2, 4), st.data())
def test_ties_between_groups_and_experts_go_to_the_lower_id(num_groups, size, data):
    num_experts = num_groups * size
    row = [float(data.draw(st.integers(-1, 1))) for _ in range(num_experts)]
    top_groups = data.draw(st.integers(1, num_groups))
    top_k = data.draw(st.integers(1, top_groups * size))
    groups = {"num_groups": num_groups, "top_groups": top_groups}
    router = GroupedSigmoidTopK(num_experts, top_k, bias=torch.zeros(num_experts), **groups)
    expected = oracle.grouped(oracle.sigmoid(row), top_k, num_groups, top_groups, sum_of_two)
    assert_routes(router(torch.tensor([row])), [expected])
