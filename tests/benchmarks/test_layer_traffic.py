"""What the benchmark of one layer hands in, and what it compares figures and answers with."""

import numpy as np
import pytest
import torch
from dispatching.shapes import Shape
from layers.cells import Cell
from layers.exact import clamped_swiglu, exact, head, relative_error, swiglu
from layers.floor import floor_microseconds
from layers.plain import PlainFamily
from layers.shapes import SHAPES
from layers.stored import SCHEMES, StoredFamily
from layers.traffic import Traffic, busiest, touched

from moesaic import Routing, StandardBatch
from tests.backends import numpy_oracle

SMALL = Shape(num_experts=7, top_k=3, hidden_size=16, intermediate_size=8)


def ids(traffic, tokens, shape=SMALL, seed=0):
    return traffic.ids(tokens, shape, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("traffic", [Traffic(), Traffic(skew=1.0), Traffic(hot=0.4)])
def test_a_token_asks_for_different_experts_of_the_layer(traffic):
    found = ids(traffic, 500)
    assert found.dtype == torch.int32
    assert all(len(set(row)) == 3 and set(row) <= set(range(7)) for row in found.tolist())
    assert len(found.unique()) == 7


def test_popularity_is_even_or_that_of_zipf_over_a_random_order():
    """The first expert that a token draws has the chances themselves."""
    for skew in (0.0, 1.0):
        first = torch.bincount(ids(Traffic(skew=skew), 20000)[:, 0].long(), minlength=7) / 20000
        chances = torch.arange(1, 8).double() ** -skew
        assert torch.allclose(first.sort(descending=True).values.double(), chances / chances.sum(), atol=0.02)
    orders = {tuple(torch.bincount(ids(Traffic(skew=2.0), 999, seed=s).flatten()).argsort().tolist()) for s in range(4)}
    assert len(orders) > 1  # other experts are popular in another batch


@pytest.mark.parametrize(("tokens", "share", "asked"), [(100, 0.25, 25), (10, 0.33, 4), (1, 0.1, 1), (6, 1.0, 6)])
def test_a_hot_expert_has_its_share_of_the_tokens_exactly(tokens, share, asked):
    found = ids(Traffic(hot=share), tokens)
    counts = torch.bincount(found.flatten(), minlength=7)
    assert asked in counts.tolist()
    hot = [e for e in range(7) if counts[e] == asked and (found[:, 0] == e).sum() == asked]
    assert hot  # it is always in the first slot


def test_traffic_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match=r"a skew of 1\.0 and a hot share of 0\.5: give one of them"):
        Traffic(skew=1.0, hot=0.5)
    with pytest.raises(ValueError, match="from 0 to 1"):
        Traffic(hot=1.5)


def test_batches_differ_and_are_the_same_in_every_run():
    first, second = (Traffic().batches(5, SMALL, 2, "cpu", torch.bfloat16) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.hidden_states, other.hidden_states)
        assert torch.equal(one.routing.topk_ids, other.routing.topk_ids)
        assert torch.equal(one.routing.topk_weights, other.routing.topk_weights)
        assert torch.allclose(one.routing.topk_weights.sum(1), torch.ones(5))
    assert not torch.equal(first[0].hidden_states, first[1].hidden_states)
    assert not torch.equal(first[0].routing.topk_ids, first[1].routing.topk_ids)


def test_touched_and_busiest_are_means_over_batches():
    weights = torch.ones(2, 2) / 2
    given = [
        StandardBatch(torch.zeros(2, 4), Routing(torch.tensor(pairs, dtype=torch.int32), weights))
        for pairs in ([[0, 1], [0, 2]], [[3, 4], [5, 6]])
    ]
    assert touched(given) == (3 + 4) / 2
    assert busiest(given) == (2 + 1) / 2


def test_the_floor_is_bytes_as_stored_or_operations():
    """qwen3_30b: 3 * 2048 * 768 numbers an expert."""
    numbers = 3 * 2048 * 768
    cases = {
        ("bf16", 1, 8): 8 * numbers * 2 / 4.28e12,
        ("bf16", 16384, 128): 2 * 16384 * 8 * numbers / 790e12,
        ("fp8_block", 1, 8): 8 * (numbers + numbers / 128**2 * 4) / 4.28e12,
        ("fp8_block", 16384, 128): 2 * 16384 * 8 * numbers / 1580e12,
        ("mxfp4", 1, 4): 4 * numbers * (4 + 8 / 32) / 8 / 4.28e12,
        ("int4", 1, 4): 4 * numbers * (4 + 16 / 128) / 8 / 4.28e12,
        ("int4", 16384, 128): 2 * 16384 * 8 * numbers / 790e12,
    }
    for (scheme, tokens, experts), seconds in cases.items():
        cell = Cell(shape="qwen3_30b", scheme=scheme, tokens=tokens)
        problem = (PlainFamily() if scheme == "bf16" else StoredFamily()).problem(cell)
        assert floor_microseconds(problem, tokens, experts) == pytest.approx(seconds * 1e6)


def layer_of(weights, gate_up):
    """The oracle's facts of a layer; its activation gets gate above up."""
    return {
        "gate_up": gate_up.double().numpy(),
        "down": weights.down.dequantize(torch.float64).numpy(),
        "gate_up_bias": None,
        "down_bias": None,
        "norm_eps": None,
        "num_experts": len(gate_up),
        "weight_on_input": False,
        "activation": "SwiGLU",
    }


@pytest.mark.parametrize("scheme", ["bf16", *SCHEMES])
@pytest.mark.parametrize("activation", [swiglu, clamped_swiglu])
def test_float32_is_the_layer_that_numpy_computes(scheme, activation):
    cell = Cell(shape="tiny", scheme=scheme, tokens=5)
    weights = (PlainFamily() if scheme == "bf16" else StoredFamily()).weights(cell, "cpu")
    batch = head(Traffic().batches(9, SHAPES["tiny"], 1, "cpu", torch.bfloat16)[0], 5)
    read = torch.stack([weights.gate_up.expert(e).dequantize(torch.float64) for e in range(8)])
    if activation is swiglu:
        facts = layer_of(weights, read) | {"constants": {"alpha": 1.0, "beta": 0.0, "limit": None}}
    else:
        facts = layer_of(weights, torch.cat([read[:, 0::2], read[:, 1::2]], 1))
        facts["constants"] = {"alpha": 1.702, "beta": 1.0, "limit": 7.0}
    ids, shares = batch.routing.topk_ids.numpy(), batch.routing.topk_weights.double().numpy()
    wanted = numpy_oracle.tokens(batch.hidden_states.double().numpy(), ids, shares, facts)
    got = exact(batch, weights, activation)
    assert got.shape == (5, 64)
    assert np.abs(got.numpy() - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert np.abs(wanted).max() > 1e-3


def test_an_error_is_relative_and_of_the_rows_that_are_wanted():
    wanted = torch.tensor([[3.0, 4.0]])
    assert relative_error(torch.tensor([[3.0, 5.0], [9.0, 9.0]]), wanted) == pytest.approx(0.2)
    assert not relative_error(wanted * torch.nan, wanted) <= 1
