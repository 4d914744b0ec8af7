"""Choosing by size in the Triton backends: what a call launches, how often that is chosen, what memory it states."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from moesaic import BatchedBatch, BatchedExperts, GroupedBatch, GroupedContiguous, HopperGrouped, Routing, TritonGrouped
from moesaic.backends import by_size, chosen_weights
from moesaic.backends.chosen_weights import ChosenWeights
from moesaic.errors import BatchError, TuningError
from moesaic.tuning import Always, CostModel, Entry, Origin, Product, Streamed, Table, Vector, choose, write_table
from tests.backends import example
from tests.tuning.examples import H200, QWEN3, layer

pytest.importorskip("triton")

NAMES = ("vector_tokens", "streamed_tokens", "streamed_rows", "product_tokens", "product_rows")


@pytest.fixture
def launched(monkeypatch):
    """(function, what it was told to launch) of every call; nothing is launched."""
    calls = []

    def told(name):
        return lambda *given: (calls.append((name, given[-1])), given[0])[1]

    for name in NAMES:
        monkeypatch.setattr(by_size, name, told(name))
    return calls


def prepared(problem, choosing=CostModel(), backend=HopperGrouped):  # noqa: B008
    """Nothing but how to choose, on an H200."""
    return ChosenWeights(SimpleNamespace(), choosing.chooser(backend(choosing).task(problem, H200)))


def tokens(count, slots=8):
    return torch.empty(count, 0), Routing(torch.zeros(count, slots, dtype=torch.int32), torch.ones(count, slots))


@pytest.mark.parametrize(
    ("count", "name"),
    [
        (1, "vector_tokens"),
        (3, "vector_tokens"),
        (4, "streamed_tokens"),
        (1023, "streamed_tokens"),
        (1024, "product_tokens"),
    ],
)
def test_tokens_go_where_the_cost_model_says(launched, count, name, unchecked):
    by_size.compute_tokens(*tokens(count), prepared(QWEN3), QWEN3)
    [(called, launch)] = launched
    assert called == name
    choice = choose(QWEN3, H200, count)
    match choice:
        case Product():
            assert launch == choice
        case Vector():
            assert tuple(map(dataclasses.astuple, launch)) == (choice.up, choice.down)
        case Streamed():
            assert dataclasses.astuple(launch) == dataclasses.astuple(choice)


def test_rows_in_expert_order_go_where_the_cost_model_says(launched, unchecked):
    problem = layer("mixtral", layout=GroupedContiguous(64))
    offsets = torch.arange(8, dtype=torch.int32) * 64
    for height in (64, 512, 8192):
        rows = torch.empty(1, 1).expand(height, 4096)
        by_size.compute_rows(GroupedBatch(rows, offsets, torch.zeros_like(offsets), 64), prepared(problem), problem)
    assert [name for name, _ in launched] == ["streamed_rows", "product_rows", "product_rows"]


def test_a_slab_is_streamed(launched, unchecked):
    problem = layer("mixtral", layout=BatchedExperts())
    batch = BatchedBatch(torch.empty(1, 1, 1).expand(8, 2000, 4096), torch.zeros(8, dtype=torch.int32))
    by_size.compute_rows(batch, prepared(problem, backend=TritonGrouped), problem)
    assert [name for name, _ in launched] == ["streamed_rows"]
    with pytest.raises(BatchError, match="cannot be computed by Product"):
        by_size.compute_rows(batch, prepared(problem, Always(Product())), problem)


def test_a_routing_with_fewer_slots_counts_its_pairs(launched, unchecked):
    """1024 tokens with one slot of eight are as many pairs as 128 tokens have."""
    given = prepared(QWEN3)
    by_size.compute_tokens(*tokens(1024, slots=1), given, QWEN3)
    by_size.compute_tokens(*tokens(128), given, QWEN3)
    assert launched[0] == launched[1]
    by_size.compute_tokens(*tokens(1, slots=3), given, QWEN3)
    assert launched[2][0] == "vector_tokens"


def test_no_slot_at_all_is_zero(launched, unchecked):
    rows = torch.full((3, 16), torch.nan)
    routing = Routing(torch.zeros(3, 0, dtype=torch.int32), torch.zeros(3, 0))
    assert not by_size.compute_tokens(rows, routing, prepared(QWEN3), QWEN3).any()
    assert launched == []


def counted(choices):
    asked = []

    def chooser(rows):
        asked.append(rows)
        return choices

    return asked, ChosenWeights(SimpleNamespace(), chooser)


def test_a_choice_is_made_once_for_each_number_of_rows(unchecked):
    asked, given = counted(Product())
    for rows in (7, 8, 7, 7, 8):
        assert given.launch(rows) == Product()
    assert asked == [7, 8]


def test_what_is_remembered_is_bounded(monkeypatch, unchecked):
    monkeypatch.setattr(chosen_weights, "REMEMBERED", 5)
    asked, given = counted(Product())
    for rows in range(1, 100):
        given.launch(rows)
        assert len(given._known) <= 5
    assert asked == list(range(1, 100))


def test_two_layers_share_nothing(unchecked):
    first, second = prepared(QWEN3), prepared(layer("mixtral"))
    assert first.launch(2) != second.launch(2)
    assert first.launch(2) == prepared(QWEN3).launch(2)


def test_a_table_is_looked_up_when_a_layer_is_bound_and_followed(tmp_path, launched, unchecked):
    """A table for this CPU, which no card has; only that it is found and followed is tried."""
    from moesaic import Machine  # noqa: PLC0415
    from moesaic.tuning import Tuned  # noqa: PLC0415

    problem = example.problem(dtype=torch.bfloat16)
    choice = Streamed(64, 0, (32, 64, 2), (32, 64, 2), warps=4, swap=False, tma=False)
    table = Table("triton_grouped", problem, Origin.of(Machine.current("cpu")), (Entry(50, choice, 1.0, 2.0),))
    path = write_table(tmp_path, table)
    given = TritonGrouped(Tuned(str(tmp_path))).prepare(example.weights(problem), problem)
    path.unlink()
    for count in (50, 51):
        by_size.compute_tokens(*tokens(count, slots=3), given, problem)
    assert dataclasses.astuple(launched[0][1]) == dataclasses.astuple(choice)
    assert dataclasses.astuple(launched[1][1]) != dataclasses.astuple(choice)


def test_a_choice_that_the_backend_lacks_is_an_error_when_a_layer_is_bound():
    problem = example.problem(dtype=torch.bfloat16)
    with pytest.raises(TuningError, match="triton_grouped"):
        TritonGrouped(Always(Product())).prepare(example.weights(problem), problem)


def test_memory_is_stated_for_what_may_be_chosen():
    def stated(choosing, problem=QWEN3, rows=4096):
        return HopperGrouped(choosing).workspace(problem, rows)

    streams, gathers, copies = CostModel(products=False), Always(Product()), Always(Product(gather=False))
    assert stated(streams) == stated(Always(choose(QWEN3, H200, 8))) == TritonGrouped().workspace(QWEN3, 4096)
    pairs, padded = 4096 * 8, 31 * 128
    inner = padded * ((2048 + 768) * 2 + 4)
    assert stated(gathers) - stated(streams) == stated(CostModel()) - stated(streams) == inner
    assert stated(copies) - stated(gathers) == (pairs + padded) * 2048 * 2
    assert stated(CostModel(), layer("mixtral")) == stated(copies, layer("mixtral"))
