import dataclasses
import re

import pytest
import torch

from moesaic import (
    ACTIVATIONS,
    BatchedExperts,
    GroupedContiguous,
    Machine,
    OutputNorm,
    PaddedStandard,
    Problem,
    Reference,
    SwiGLU,
    bind,
    resolve,
)
from moesaic.cli import layer_timing
from moesaic.cli.agreement import disagreement, is_allowed
from moesaic.cli.clocks import CpuClock
from moesaic.cli.layer_timing import LayerTiming
from moesaic.cli.machine_bound import MachineBound, Work, work_of
from moesaic.cli.reading import read_value
from moesaic.cli.synthetic_layer import random_batch, random_weights, skewed_routing
from moesaic.cli.times import Times

FLAGS = ("--experts", "5", "--top-k", "2", "--hidden", "32", "--intermediate", "16", "--activation", "SwiGLU()")
PROBLEM = Problem(
    num_experts=5, top_k=2, hidden_size=32, intermediate_size=16, activation=SwiGLU(), dtype=torch.float32
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A bound that takes no time to measure, and small buffers."""
    monkeypatch.setattr(layer_timing, "measure_bound", lambda *_: MachineBound(1e10, 1e11))
    monkeypatch.setattr("moesaic.cli.clocks.COLD_BYTES", 4096)


def test_json_has_exactly_the_documented_keys(moesaic):
    answer = moesaic("bench", *FLAGS, "--tokens", "1,3", "--repeats", "2", "--json")
    assert answer.code == 0
    document = answer.document
    assert list(document) == ["machine", "commit", "rows"]
    assert read_value(document["machine"]) == Machine.current()
    assert document["commit"] is None or isinstance(document["commit"], str)
    assert {row["tokens"] for row in document["rows"]} == {1, 3}
    for row in document["rows"]:
        assert list(row) == [
            *("shape", "tokens", "dtype", "backend", "microseconds"),
            *("p10_microseconds", "p90_microseconds", "bound_microseconds"),
        ]
        assert 0 < row["p10_microseconds"] <= row["microseconds"] <= row["p90_microseconds"]
        assert row["shape"] == "E=5 K=2 H=32 I=16"
        assert row["dtype"] == "bfloat16"
        assert row["backend"] != "reference"
        assert row["microseconds"] > 0
        assert row["bound_microseconds"] > 0


def test_the_oracle_is_timed_only_when_it_is_named(moesaic):
    answer = moesaic("bench", *FLAGS, "--tokens", "2", "--repeats", "1", "--backend", "reference", "--json")
    assert [row["backend"] for row in answer.document["rows"]] == ["reference"]


def test_text_has_no_json_and_names_the_measured_bound(moesaic):
    answer = moesaic("bench", *FLAGS, "--tokens", "2", "--repeats", "1", "--dtype", "float32")
    assert answer.code == 0
    assert "reads 10.0 GB/s, products 0.100 TFLOP/s in float32" in answer.out
    assert "microseconds" in answer.out
    assert answer.err == "" or answer.err.startswith("not timed: ")


def test_text_shows_the_spread_beside_the_median(moesaic, monkeypatch):
    taken = iter([0.0] * 3 + [microseconds * 1e-6 for microseconds in (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 510)])
    monkeypatch.setattr(CpuClock, "seconds", lambda *_: next(taken))
    flags = ("--tokens", "2", "--repeats", "11", "--backend", "reference")
    answer = moesaic("bench", *FLAGS, *flags)
    assert "p10 to p90" in answer.out
    row = next(line for line in answer.out.splitlines() if "reference" in line)
    assert re.split(r"\s{2,}", row.strip())[:4] == ["2", "reference", "60.0", "20.0 to 100.0"]


def test_one_call_has_no_spread():
    assert Times.of([2.0]) == Times(2.0, 2.0, 2.0)
    assert dataclasses.astuple(Times.of([1.0, 2.0])) == pytest.approx((1.5, 1.1, 1.9))


def test_nobody_eligible_is_no_and_gives_every_reason(moesaic):
    answer = moesaic("bench", *FLAGS, "--dtype", "float64", "--backend", "torch_grouped")
    assert answer.code == 1
    assert answer.out == ""
    assert "dtype: needs one of" in answer.err


def test_a_wrong_backend_is_not_timed(moesaic, monkeypatch):
    monkeypatch.setattr(layer_timing, "disagreement", lambda *_: 0.5)
    answer = moesaic("bench", *FLAGS, "--tokens", "2", "--repeats", "1", "--json")
    assert answer.code == 1
    assert answer.document["rows"] == []
    assert "is wrong: its error is 0.5" in answer.err


def test_an_error_is_seen_and_nan_is_an_error():
    weights = random_weights(PROBLEM, CPU)
    oracle = bind(PROBLEM, weights, backends=(Reference(),))
    batch = random_batch(PROBLEM, 7, CPU)
    assert disagreement(oracle, oracle, batch) == 0
    error = disagreement(lambda b: oracle(b) * 1.5, oracle, batch)
    assert 0.4 < error < 0.6
    assert not is_allowed(error, torch.bfloat16)
    assert not is_allowed(disagreement(lambda b: oracle(b) * float("nan"), oracle, batch), torch.bfloat16)


@pytest.mark.parametrize("layout", [PaddedStandard(), GroupedContiguous(), GroupedContiguous(8), BatchedExperts()])
def test_every_layout_is_timed_and_undefined_rows_are_not_compared(layout):
    problem = dataclasses.replace(PROBLEM, layout=layout, bias=True, output_norm=OutputNorm())
    resolution = resolve(problem, Machine.current("cpu"), (Reference(),))
    timing = LayerTiming.prepare(resolution, CPU, 6)
    [row] = timing.rows((6,), repeats=1)
    assert row.tokens == 6
    assert not timing.refused


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_weights_keep_the_scale_of_a_row(activation):
    problem = dataclasses.replace(PROBLEM, hidden_size=96, intermediate_size=64, activation=activation())
    oracle = bind(problem, random_weights(problem, CPU), backends=(Reference(),))
    spread = oracle(random_batch(problem, 64, CPU)).std()
    assert 0.05 < spread < 5


def test_experts_differ_and_equal_seeds_agree():
    first, again, other = (random_weights(PROBLEM, CPU, seed=seed).gate_up.data for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not any(torch.equal(first[0], first[e]) for e in range(1, 5))


def test_routing_is_distinct_and_skewed():
    problem = dataclasses.replace(PROBLEM, num_experts=16, top_k=4)
    routing = skewed_routing(problem, 2000, torch.Generator().manual_seed(0))
    assert all(len(set(row)) == 4 for row in routing.topk_ids.tolist())
    torch.testing.assert_close(routing.topk_weights.sum(-1), torch.ones(2000))
    counts = torch.bincount(routing.topk_ids.flatten(), minlength=16).sort(descending=True).values
    assert counts[0] > 4 * counts[-1] > 0


def test_the_work_counts_touched_experts_and_rows_once():
    problem = dataclasses.replace(PROBLEM, top_k=1)
    weights = random_weights(problem, CPU)
    work = work_of(problem, weights, random_batch(problem, 1, CPU))
    assert work == Work(num_bytes=weights.num_bytes // 5 + 2 * 32 * 4, flops=2 * 3 * 32 * 16)
    bound = MachineBound(bytes_per_second=100.0, flops_per_second=10.0)
    assert bound.seconds(Work(200, 10)) == 2
    assert bound.reads_dominate(Work(200, 10))
    assert bound.seconds(Work(200, 30)) == 3
    assert not bound.reads_dominate(Work(200, 30))


def test_the_clock_of_the_host_times_the_call_alone():
    called = []
    clock = CpuClock()
    assert 0 <= clock.seconds(lambda: called.append(1)) < 1
    assert called == [1]
