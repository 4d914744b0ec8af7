"""The benchmark of one layer: what fails is named and left out, and the rest goes on."""

import json
import math
from itertools import pairwise

import pytest
import torch
from layers.cells import Cell, dealt, ordered
from layers.course import SPENT
from layers.curves import best_peer
from layers.report import Report, line

from tests.benchmarks.layer_fakes import Puppet, Puppets, StillClock, cells, course, entries, right


def fail(*_):
    raise ValueError("no kernel\n   image")


FAILED = f"ValueError: no kernel image (test_layer_course.py:{fail.__code__.co_firstlineno + 1})"


def of(found, kind):
    return [row for name, row in found if name == kind]


def test_a_row_has_the_figures_of_its_contender_and_its_role():
    family = Puppets((Puppet("main", is_own=True), Puppet("other", is_own=True)), (Puppet("peer"),))
    found = course(family)
    rows = of(entries(found, cells(3)), "rows")
    assert [(row["impl"], row["role"]) for row in rows] == [("main", "moesaic"), ("other", "variant"), ("peer", "peer")]
    for row in rows:
        assert (row["shape"], row["scheme"], row["tokens"], row["scope"]) == ("tiny", "bf16", 3, "layer")
        assert row["lowest"] == row["microseconds"] == row["highest"] == round(10.0 / 16, 2)  # a graph has 16 inputs
        assert row["error"] < 1e-6
        assert row["busiest_expert_rows"] <= 3 <= row["touched_experts"] * 2
    assert ["host_microseconds" in row for row in rows] == [True, False, False]
    assert found.conditions.clock.replays == 3 * 3  # rounds
    assert found.versions == {"main": "1.0", "other": "1.0", "peer": "1.0"}
    assert not found.faults


@pytest.mark.parametrize("where", ["at_bind", "answer"])
def test_a_peer_that_raises_is_left_out_of_its_cell_alone(where):
    broken = Puppet("broken", **{where: fail})
    family = Puppets((Puppet("main", is_own=True),), (broken, Puppet("peer")))
    found = course(family)
    everything = entries(found, cells(1, 2))
    assert [(row["impl"], row["tokens"]) for row in of(everything, "rows")] == [
        ("main", 1),
        ("peer", 1),
        ("main", 2),
        ("peer", 2),
    ]
    reasons = of(everything, "not_run")
    assert [(row["impl"], row["tokens"]) for row in reasons] == [("broken", 1), ("broken", 2)]
    assert [row["why"] for row in reasons] == [FAILED] * 2
    assert len(broken.bindings) == 1  # an import that fails is not tried for every number of tokens
    assert len(family.drawn) == 1
    assert not found.faults


def test_a_peer_that_is_wrong_is_timed_and_marked_and_never_the_best():
    def twice(batch, weights):
        return 2 * right(batch, weights)

    def not_a_number(batch, weights):
        return right(batch, weights) * math.nan

    family = Puppets(
        (Puppet("main", is_own=True),), (Puppet("twice", twice), Puppet("nan", not_a_number), Puppet("ok"))
    )
    found = course(family)
    rows = {row["impl"]: row for row in of(entries(found, cells(2)), "rows")}
    assert rows["twice"]["wrong"] == "the error is 1, allowed is 0.01"
    assert rows["nan"]["error"] is None
    assert "allowed" in rows["nan"]["wrong"]
    assert best_peer(list(rows.values()))["impl"] == "ok"
    assert not found.faults
    assert "twice 0.6 WRONG" in line(list(rows.values()))
    json.dumps(list(rows.values()), allow_nan=False)


@pytest.mark.parametrize("is_own", [False, True])
def test_what_is_timed_is_judged_too(is_own):
    calls = []

    def lazy(batch, weights):
        calls.append(None)
        return right(batch, weights) * (1 if len(calls) <= 2 else 0.5)  # as a graph that computes less than its calls

    own, peers = (Puppet("main", is_own=True),), (Puppet("lazy", lazy),)
    found = course(Puppets((Puppet("lazy", lazy, is_own=True),) if is_own else own, () if is_own else peers))
    row = next(row for row in of(entries(found, cells(9)), "rows") if row["impl"] == "lazy")
    assert row["wrong"] == "the error of what was timed is 0.5"
    assert found.faults == (["tiny bf16 T=9: lazy is wrong: the error of what was timed is 0.5"] if is_own else [])


def test_moesaic_has_to_be_right_twice_with_the_same_bits():
    calls = []

    def restless(batch, weights):
        calls.append(None)
        return right(batch, weights) * (1 + 1e-4 * (len(calls) % 2))

    found = course(Puppets((Puppet("main", restless, is_own=True),), (Puppet("peer", restless),)))
    rows = of(entries(found, cells(2)), "rows")
    assert [row.get("wrong") for row in rows] == ["other bits the second time", None]
    assert found.faults == ["tiny bf16 T=2: main is wrong: other bits the second time"]


def test_a_failure_of_moesaic_is_named_and_peers_are_measured():
    found = course(Puppets((Puppet("main", fail, is_own=True),), (Puppet("peer"),)))
    everything = entries(found, cells(2))
    assert [row["impl"] for row in of(everything, "rows")] == ["peer"]
    assert found.faults == [f"tiny bf16 T=2: main: {FAILED}"]
    assert line(of(everything, "rows")).startswith("tiny bf16 T=2: peer 0.6 us")


def test_nothing_runs_on_a_device_that_is_lost():
    clock = StillClock()

    def destroy(*_):
        clock.dead.append(None)
        raise RuntimeError("an illegal memory access")

    found = course(Puppets((Puppet("main", is_own=True),), (Puppet("bad", destroy), Puppet("next"))), clock)
    everything = entries(found, cells(1, 2))
    assert [(row["impl"], row["tokens"]) for row in of(everything, "not_run")] == [("bad", 1), ("all", 2)]
    assert "the device is lost" in everything[-1][1]["why"]
    assert "since RuntimeError: an illegal memory access" in everything[-1][1]["why"]


def test_the_budget_names_what_it_left_out_and_missing_peers_are_named_once():
    absent = Puppet("absent", why="not installed")
    found = course(Puppets((Puppet("main", is_own=True),), (absent,)), budget=-1.0)
    everything = entries(found, cells(1, 2))
    assert everything == [
        ("not_run", {"impl": "absent", "why": "not installed"}),
        ("not_run", {"shape": "tiny", "scheme": "bf16", "tokens": 1, "impl": "all", "why": SPENT}),
        ("not_run", {"shape": "tiny", "scheme": "bf16", "tokens": 2, "impl": "all", "why": SPENT}),
    ]
    assert not absent.bindings


def test_warming_calls_everybody_once_and_says_who_failed():
    calls = []

    def count(batch, weights):
        calls.append(len(batch.hidden_states))
        return right(batch, weights)

    family = Puppets((Puppet("main", count, is_own=True),), (Puppet("broken", fail), Puppet("peer", count)))
    with torch.no_grad():
        said = list(course(family).warm(cells(5, 9)))
    assert calls == [5, 5, 9, 9]
    assert said == [f"tiny bf16 T={n}: broken: {FAILED}" for n in (5, 9)]
    assert list(course(family, budget=-1.0).warm(cells(5, 9))) == [f"tiny bf16 T=5 and what follows: {SPENT}"]


def test_cells_come_in_the_order_that_was_asked_for_and_are_dealt_evenly():
    layers = [("bf16", name) for name in ("mixtral", "qwen3_30b", "odd")]
    by_layer = ordered(layers, (64, 1), tokens_first=False)
    assert [(c.shape, c.tokens) for c in by_layer[:3]] == [("mixtral", 64), ("mixtral", 1), ("qwen3_30b", 64)]
    by_tokens = ordered(layers, (64, 1), tokens_first=True)
    assert [(c.shape, c.tokens) for c in by_tokens[:4]] == [
        ("mixtral", 64),
        ("qwen3_30b", 64),
        ("odd", 64),
        ("mixtral", 1),
    ]
    every = ordered(layers, tuple(2**n for n in range(15)), tokens_first=False)
    for count in (1, 4, 7, 15):
        parts = [dealt(every, index, count) for index in range(count)]
        assert sorted(str(cell) for part in parts for cell in part) == sorted(map(str, every))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert max(sum(cell.tokens >= 4096 for cell in part) for part in parts) <= -(-9 // count) + 1
        for part in parts:  # cells of a layer lie side by side, so that its weights are drawn once
            assert len({cell.shape for cell in part}) == 1 + sum(a.shape != b.shape for a, b in pairwise(part))


def test_a_report_goes_on_where_it_ended_and_refuses_another_run(tmp_path):
    file = tmp_path / "found.json"
    head = {"commit": "a", "rounds": 3, "versions": {"vllm": "1"}, "shapes": {"tiny": {}}}
    first = Report(dict(head), file)
    cell = {"shape": "tiny", "scheme": "bf16", "tokens": 1}
    first.found["rows"].append({**cell, "impl": "main"})
    first.found["not_run"] += [
        {**cell, "impl": "broken", "why": "x"},
        {**cell, "tokens": 2, "impl": "all", "why": SPENT},
        {"impl": "absent", "why": "y"},
    ]
    first.write()
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    second = Report({**head, "versions": {"torch": "2"}, "shapes": {"odd": {}}}, file)
    second.resume()
    assert second.has(**cell)
    assert not second.has(**vars(Cell(shape="tiny", scheme="bf16", tokens=2)))
    assert second.found == {"rows": first.found["rows"], "not_run": [{**cell, "impl": "broken", "why": "x"}]}
    assert second.head["versions"] == {"vllm": "1", "torch": "2"}
    assert set(second.head["shapes"]) == {"tiny", "odd"}
    with pytest.raises(ValueError, match="has commit 'a', but this run 'b': write another file"):
        Report({**head, "commit": "b"}, file).resume()
    Report(head, tmp_path / "none.json").resume()
