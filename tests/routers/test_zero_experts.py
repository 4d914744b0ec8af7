"""LongCat's zero experts against the oracle."""

import pytest
import torch

from moesaic.errors import RouterError
from moesaic.routers import ZeroExpertTopK
from tests.routers import oracle
from tests.routers.comparing import assert_routes, probabilities, random_bias, random_logits


@pytest.mark.parametrize(("num_experts", "num_zero", "top_k"), [(1, 1, 2), (5, 3, 4), (512, 256, 12)])
def test_equals_the_oracle(num_experts, num_zero, top_k):
    logits, bias = random_logits(9, num_experts + num_zero), random_bias(num_experts + num_zero) * 0.01
    router = ZeroExpertTopK(num_experts, top_k, num_zero_experts=num_zero, bias=bias, scaling_factor=6.0)
    expected = [oracle.zero_experts(row, top_k, num_experts, bias.tolist(), 6.0) for row in logits.tolist()]
    routing = router(logits)
    assert_routes(routing, [(ids, weights) for ids, weights, _ in expected])
    assert routing.identity_weights.dtype == torch.float32
    torch.testing.assert_close(routing.identity_weights, torch.tensor([identity for *_, identity in expected]))


def test_worked_example():
    """Two real experts, two zero experts; the bias brings the weakest zero expert in, with its own weight."""
    bias = torch.tensor([0.0, 0.0, 0.0, 1.0])
    router = ZeroExpertTopK(2, 3, num_zero_experts=2, bias=bias, scaling_factor=2.0)
    routing = router(probabilities([0.4, 0.2, 0.3, 0.1]))
    assert_routes(routing, [([-1, 0, -1], [0.0, 0.8, 0.0])])
    torch.testing.assert_close(routing.identity_weights, torch.tensor([0.8]))


def test_all_real_and_all_zero_rows():
    router = ZeroExpertTopK(2, 2, num_zero_experts=2, bias=torch.zeros(4))
    routing = router(torch.tensor([[5.0, 5.0, 0.0, 0.0], [0.0, 0.0, 5.0, 5.0]]))
    assert routing.topk_ids.tolist() == [[0, 1], [-1, -1]]
    assert routing.identity_weights[0] == 0
    assert routing.topk_weights[1].tolist() == [0, 0]
    assert routing.identity_weights[1] > 0.9


def test_weight_is_kept_whole():
    """What the experts and the hidden state get together is what the softmax gave to the selected."""
    logits = random_logits(20, 11)
    routing = ZeroExpertTopK(6, 11, num_zero_experts=5, bias=random_bias(11), scaling_factor=6.0)(logits)
    torch.testing.assert_close(routing.topk_weights.sum(-1) + routing.identity_weights, torch.full((20,), 6.0))


def test_impossible_counts_are_errors():
    with pytest.raises(RouterError, match="top_k is 5"):
        ZeroExpertTopK(2, 5, num_zero_experts=2, bias=torch.zeros(4))
    with pytest.raises(RouterError, match="num_zero_experts is 0"):
        ZeroExpertTopK(2, 1, num_zero_experts=0, bias=torch.zeros(2))
    with pytest.raises(RouterError, match=r"shape \(4,\)"):
        ZeroExpertTopK(2, 1, num_zero_experts=2, bias=torch.zeros(2))
    with pytest.raises(RouterError, match="for 4 logits"):
        ZeroExpertTopK(2, 1, num_zero_experts=2, bias=torch.zeros(4))(torch.zeros(1, 2))
