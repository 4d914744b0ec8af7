"""The hash router against the oracle, and its ids that belong to nobody."""

import pytest
import torch

from moesaic.errors import RouterError
from moesaic.routers import HashedTopK
from tests.routers import oracle
from tests.routers.comparing import assert_routes, random_logits

TABLE = torch.tensor([[0, 1], [2, 3], [3, 0], [1, 1]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_equals_the_oracle(dtype):
    generator = torch.Generator().manual_seed(2)
    table = torch.stack([torch.randperm(13, generator=generator)[:6] for _ in range(29)]).to(dtype)
    token_ids = torch.randint(0, 29, (17,), generator=generator, dtype=dtype)
    logits = random_logits(17, 13)
    expected = [
        oracle.hashed(row, table[token].tolist(), 1e-20, 1.5)
        for row, token in zip(logits.tolist(), token_ids.tolist(), strict=True)
    ]
    assert_routes(HashedTopK(13, table, epsilon=1e-20, scaling_factor=1.5)(logits, token_ids), expected)


def test_logits_weigh_and_never_select():
    routing = HashedTopK(4, TABLE)(torch.tensor([[0.0, 0.0, 9.0, 9.0]] * 2), torch.tensor([0, 1]))
    assert_routes(routing, [([0, 1], [0.5, 0.5]), ([2, 3], [0.5, 0.5])])


def test_repeated_ids_come_back_as_they_are():  # F26 is the experts' business
    assert_routes(HashedTopK(4, TABLE)(torch.zeros(1, 4), torch.tensor([3])), [([1, 1], [0.5, 0.5])])


def test_token_ids_outside_the_table_are_inactive():
    routing = HashedTopK(4, TABLE)(torch.zeros(4, 4), torch.tensor([-1, 4, 2**40, 2]))
    nobody = ([-1, -1], [0.0, 0.0])
    assert_routes(routing, [nobody, nobody, nobody, ([3, 0], [0.5, 0.5])])


def test_entries_outside_the_experts_are_inactive_and_not_summed():
    table = torch.tensor([[0, -1], [4, 3], [-1, 7]])
    routing = HashedTopK(4, table)(torch.zeros(3, 4), torch.tensor([0, 1, 2]))
    assert_routes(routing, [([0, -1], [1.0, 0.0]), ([-1, 3], [0.0, 1.0]), ([-1, -1], [0.0, 0.0])])


def test_nan_reaches_the_slots_of_its_row_only():
    logits = torch.tensor([[float("nan"), 0.0, 0.0, 0.0]] * 3)
    routing = HashedTopK(4, torch.tensor([[0, 1], [1, 2], [0, -1]]))(logits, torch.tensor([0, 1, 2]))
    assert routing.topk_ids.tolist() == [[0, 1], [1, 2], [0, -1]]
    assert routing.topk_weights.isnan().tolist() == [[True, True], [False, False], [True, False]]
    assert routing.topk_weights[2, 1] == 0


def test_no_tokens():
    assert HashedTopK(4, TABLE)(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)).topk_ids.shape == (0, 2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("table", [torch.zeros(3), torch.zeros(3, 2), torch.zeros(0, 2).int(), [[0, 1]]])
def test_a_table_of_something_else_is_an_error(table):
    with pytest.raises(RouterError, match=r"HashedTopK\.table"):
        HashedTopK(4, table)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("token_ids", [None, torch.zeros(3, dtype=torch.int64)])
def test_token_ids_are_required_one_per_token(token_ids):
    with pytest.raises(RouterError, match="token_ids"):
        HashedTopK(4, TABLE)(torch.zeros(2, 4), token_ids)
