"""A user's own rule."""

import pytest
import torch

from moesaic.errors import BatchError, RouterError
from moesaic.routers import CustomRouter


def highest(logits, token_ids):
    weights, ids = logits.max(dim=-1, keepdim=True)
    return ids, weights


def test_the_rule_decides():
    routing = CustomRouter(highest)(torch.tensor([[1.0, 3.0], [4.0, 2.0]], dtype=torch.bfloat16))
    assert routing.topk_ids.dtype == torch.int32
    assert routing.topk_ids.tolist() == [[1], [0]]
    assert routing.topk_weights.dtype == torch.float32
    assert routing.topk_weights.tolist() == [[3.0], [4.0]]


def test_the_rule_sees_float32_logits_and_token_ids():
    seen = []

    def rule(logits, token_ids):
        seen.append((logits, token_ids))
        return highest(logits, token_ids)

    logits, token_ids = torch.zeros(2, 3, dtype=torch.float16), torch.tensor([5, 6])
    CustomRouter(rule)(logits, token_ids)
    assert seen[0][0].dtype == torch.float32
    assert seen[0][1] is token_ids


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "returned",
    [
        None,
        torch.zeros(2, 1),
        (torch.zeros(2, 1).int(), [[1.0], [1.0]]),
        (torch.zeros(3, 1).int(), torch.zeros(3, 1)),
        (torch.zeros(2, 1).int(), torch.zeros(2, 1), torch.zeros(2, 1)),
    ],
)
def test_anything_but_two_tensors_for_these_tokens_is_an_error(returned):
    with pytest.raises(RouterError, match=r"needs two tensors.*\(2, K\)"):
        CustomRouter(lambda logits, token_ids: returned)(torch.zeros(2, 4))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (torch.zeros(2, 2), torch.zeros(2, 2)),
        (torch.zeros(2, 2).int(), torch.zeros(2, 3)),
        (torch.zeros(2, 2).int(), torch.zeros(2, 2).bfloat16()),
    ],
)
def test_the_result_is_checked_as_routing(ids, weights):  # F30
    with pytest.raises(BatchError):
        CustomRouter(lambda logits, token_ids: (ids, weights))(torch.zeros(2, 4))


@pytest.mark.usefixtures("unchecked")
def test_a_rule_must_be_callable():
    with pytest.raises(RouterError, match="needs a callable"):
        CustomRouter("softmax")


def test_equal_rules_make_equal_routers():
    assert CustomRouter(highest) == CustomRouter(highest)
    assert len({CustomRouter(highest), CustomRouter(highest)}) == 1
    assert CustomRouter(highest) != CustomRouter(max)
