"""Balancedness, planned and realised, and the load that a rank carries."""

import pytest
import torch

from moesaic.dispatch.balance import balance
from moesaic.dispatch.balancedness import planned_balancedness, rank_loads, realised_balancedness
from moesaic.dispatch.placement import Placement
from moesaic.errors import DispatchError

SHARED = Placement(3, ((0, 1), (0, 2)))
IN_ORDER = Placement.contiguous(4, 2)


def test_replicas_share_their_experts_load_equally():
    assert rank_loads(torch.tensor([6.0, 1.0, 3.0]), SHARED).tolist() == [4.0, 6.0]


def test_planned_is_mean_over_maximum():
    load = torch.tensor([[6, 1, 3], [0, 0, 5], [0, 0, 0]])
    assert planned_balancedness(load, (SHARED,) * 3).tolist() == pytest.approx([5 / 6, 0.5, 1.0])


@pytest.mark.parametrize("exponent", [1021, 0, -1074])
def test_planned_is_the_same_in_any_unit(exponent):
    load = torch.tensor([[7.0, 1, 3], [0, 0, 5], [0, 0, 0]], dtype=torch.float64)
    found = planned_balancedness(load * 2.0**exponent, (SHARED,) * 3)
    assert torch.equal(found, planned_balancedness(load, (SHARED,) * 3))


def test_loads_of_one_layer_as_large_as_floats_are_level():
    load = torch.full((4,), 1.7e308, dtype=torch.float64)
    assert planned_balancedness(load, (IN_ORDER,)).tolist() == [1.0]


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_the_default_device_is_not_used(device):
    load, options = torch.tensor([[6.0, 1, 3, 2]]), {"num_tokens": 9, "top_k": 2, "batches": 2}
    wanted = planned_balancedness(load, (IN_ORDER,)), realised_balancedness(load, (IN_ORDER,), **options)
    torch.set_default_device(device)
    try:
        found = planned_balancedness(load, (IN_ORDER,)), realised_balancedness(load, (IN_ORDER,), **options)
    finally:
        torch.set_default_device(None)
    assert all(map(torch.equal, found, wanted))


def test_realised_goes_to_planned_as_tokens_grow():
    load = torch.tensor([[90.0, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86]])
    plans = balance(load, 16, 8)
    planned = planned_balancedness(load, plans)
    realised = realised_balancedness(load, plans, num_tokens=200_000, top_k=4, batches=2)
    torch.testing.assert_close(realised, planned, rtol=0.01, atol=0)
    few = realised_balancedness(load, plans, num_tokens=16, top_k=4)
    assert few < planned - 0.1


def test_realised_counts_whole_tokens():
    # Both experts of every token: 5 rows on each of two ranks.
    one_each = Placement.contiguous(2, 2)
    assert realised_balancedness(torch.tensor([1.0, 1.0]), (one_each,), num_tokens=5, top_k=2).tolist() == [1.0]
    # One expert on two ranks, which begin with different replicas: 2 + 1 against 1 + 1 of 5 tokens, 1 and 1 of 2.
    twice = Placement(1, ((0,), (0,)))
    assert realised_balancedness(torch.tensor([1.0]), (twice,), num_tokens=5, top_k=1).tolist() == [2.5 / 3]
    assert realised_balancedness(torch.tensor([1.0]), (twice,), num_tokens=2, top_k=1).tolist() == [1.0]


def test_experts_without_load_are_not_drawn():
    assert realised_balancedness(torch.tensor([0.0, 7, 0, 0]), (IN_ORDER,), num_tokens=99, top_k=1).tolist() == [0.5]
    assert realised_balancedness(torch.tensor([0.0, 7, 0, 0]), (IN_ORDER,), num_tokens=99, top_k=2).tolist() == [0.5]
    assert realised_balancedness(torch.zeros(4), (IN_ORDER,), num_tokens=99, top_k=2).tolist() == [1.0]


def test_realised_repeats_with_its_seed():
    load = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = [realised_balancedness(load, (IN_ORDER,) * 2, num_tokens=9, top_k=2, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("load", "placements", "changes", "message"),
    [
        (torch.ones(2, 4), (IN_ORDER,), {}, "1 placements for the load of 2 layers"),
        (torch.ones(1, 3), (IN_ORDER,), {}, "layer 0 is of 3 experts, but its placement has 4"),
        (-torch.ones(4), (IN_ORDER,), {}, "is -1.0"),
        (torch.ones(4), (IN_ORDER,), {"num_tokens": 0}, "num_tokens is 0"),
        (torch.ones(4), (IN_ORDER,), {"batches": 0}, "batches is 0"),
        (torch.ones(4), (IN_ORDER,), {"top_k": 5}, "top_k is 5"),
    ],
)
def test_bad_input_is_named(load, placements, changes, message):
    with pytest.raises(DispatchError, match=message):
        realised_balancedness(load, placements, **{"num_tokens": 8, "top_k": 2, **changes})
