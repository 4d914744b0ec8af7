"""SparseMixer's rule against the oracle."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic.errors import RouterError
from moesaic.routers import SparseMixer
from tests.routers import oracle
from tests.routers.comparing import assert_routes, random_logits


@pytest.mark.parametrize("num_experts", [2, 3, 16])
@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.3])
def test_equals_the_oracle(num_experts, jitter):
    logits = random_logits(40, num_experts)
    expected = [oracle.sparsemixer(row, jitter) for row in logits.tolist()]
    assert_routes(SparseMixer(num_experts, jitter=jitter)(logits), expected)


def test_worked_example():
    """2.00 and 1.99 are near; 1.00 is not; after the first is taken, 1.99 has no rival left."""
    near = 1 / (1 + math.exp(-0.01))
    assert_routes(SparseMixer(3)(torch.tensor([[1.0, 2.0, 1.99]])), [([1, 2], [near, 1.0])])


def test_no_logit_stands_out():
    assert_routes(SparseMixer(4)(torch.zeros(1, 4)), [([0, 1], [1 / 4, 1 / 3])])


def test_rows_of_minus_infinity_give_two_experts():
    routing = SparseMixer(3)(torch.full((1, 3), -math.inf))
    assert routing.topk_ids.tolist() == [[0, 1]]
    assert routing.topk_weights.isnan().all()


def test_one_expert_is_too_few():
    with pytest.raises(RouterError, match="selects 2 experts"):
        SparseMixer(1)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=10), st.sampled_from([0.0, 0.1, 0.26]))
def test_ties_go_to_the_lower_id(levels, jitter):
    row = [float(level) for level in levels]
    assert_routes(SparseMixer(len(row), jitter=jitter)(torch.tensor([row])), [oracle.sparsemixer(row, jitter)])
