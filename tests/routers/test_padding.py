"""Padding rows go to no expert (F29)."""

import numpy as np
import pytest
import torch

from moesaic import Routing
from moesaic.errors import RouterError
from moesaic.routers import deactivate_padding
from tests.routers.comparing import random_logits
from tests.routers.examples import every_router, token_ids

NAN = float("nan")


@every_router
@pytest.mark.parametrize("as_tensor", [False, True])
def test_three_live_rows_of_five(router, as_tensor):
    logits = random_logits(5, 8)
    logits[3:] = NAN
    whole = router(logits, token_ids(5))
    routing = deactivate_padding(whole, torch.tensor(3, dtype=torch.int32) if as_tensor else 3)
    assert torch.equal(routing.topk_ids[:3], whole.topk_ids[:3])
    assert torch.equal(routing.topk_weights[:3], whole.topk_weights[:3])
    assert (routing.topk_ids[3:] == -1).all()
    assert (routing.topk_weights[3:] == 0).all()
    active = whole.topk_ids[:3]
    load = torch.bincount(routing.topk_ids[routing.topk_ids >= 0], minlength=8)
    assert load.sum() == (active >= 0).sum()
    if whole.identity_weights is not None:
        assert torch.equal(routing.identity_weights[:3], whole.identity_weights[:3])
        assert (routing.identity_weights[3:] == 0).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("num_valid", "left"), [(0, 0), (1, 1), (2, 2), (9, 2), (np.int64(1), 1)])
def test_any_number_of_live_rows(num_valid, left):
    routing = deactivate_padding(Routing(torch.tensor([[0], [1]]), torch.ones(2, 1)), num_valid)
    assert (routing.topk_ids >= 0).sum() == left


def test_identity_weights_of_padding_are_zero():
    given = Routing(torch.tensor([[0], [-1], [1]]), torch.ones(3, 1), torch.tensor([0.5, 2.0, NAN]))
    assert deactivate_padding(given, 1).identity_weights.tolist() == [0.5, 0.0, 0.0]


def test_the_given_routing_is_unchanged():
    given = Routing(torch.tensor([[0], [1]]), torch.ones(2, 1), torch.ones(2))
    deactivate_padding(given, 0)
    assert given.topk_ids.tolist() == [[0], [1]]
    assert given.topk_weights.tolist() == [[1.0], [1.0]]
    assert given.identity_weights.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("num_valid", [-1, torch.tensor([1]), torch.tensor(1.0)])
def test_anything_but_a_count_is_an_error(num_valid):
    with pytest.raises(RouterError, match="num_valid"):
        deactivate_padding(Routing(torch.tensor([[0]]), torch.ones(1, 1)), num_valid)
