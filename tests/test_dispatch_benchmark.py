"""The benchmark of expert parallelism: what it hands in, compares, leaves out, writes and plots."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from dispatching import course as course_module
from dispatching.cells import Cell, Wanted
from dispatching.course import SPENT, Course
from dispatching.exact_experts import ExactExperts, exact_call
from dispatching.kit import conform
from dispatching.report import Report
from dispatching.shapes import SHAPES, Job
from dispatching.subjects import DISPATCHERS
from dispatching.traffic import ROUTINGS, busiest, call, drawn, flows, placed
from expert_parallel import asked

from moesaic import Routing, StandardBatch
from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.placement import Placement
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.errors import FleetError
from tests.around_all_to_all import AroundAllToAll
from tests.quoted import cells
from tests.rank_processes import LIMIT, ROOT

OVER_GLOO = tuple(name for name in DISPATCHERS if not name.startswith("symmetric"))
TINY = Wanted(
    dispatchers=OVER_GLOO,
    shapes=("tiny",),
    tokens=(5,),
    routings=tuple(ROUTINGS),
    placements=("contiguous", "balanced"),
)


def measure(wanted, ranks, budget=1e9):
    """What this rank reports."""
    jobs = {name: Job.of(name, ranks, torch.float32) for name in wanted.shapes}
    course = Course(ranks, jobs, 2, budget, time.monotonic())
    return list(course.run(wanted.cells(ranks.size)))


def run(wanted, budget=1e9):
    """What each of two ranks reports."""

    def one(ranks):
        with torch.no_grad():
            return measure(wanted, ranks, budget)

    return in_threads(one, ranks_in_threads(2))


def test_every_dispatcher_over_gloo_is_one_rank_and_both_ranks_report_the_same():
    first, second = run(TINY)
    assert Counter(row["dispatcher"] for _, row in first) == {n: 2 if n == "local" else 3 for n in OVER_GLOO}
    for (kind, row), (other, same) in zip(first, second, strict=True):
        assert kind == other == "rows"
        assert {**row, "seconds": 0} == {**same, "seconds": 0}
        assert row["exact"]
        assert 0 <= row["error"] <= 1e-5
        parts = [row[part]["median"] for part in ("dispatch", "compute", "combine")]
        assert row["layer_over_sum"] == round(row["layer"]["median"] / sum(parts), 3)
        assert row["layer_over_max"] == round(row["layer"]["median"] / max(parts[1], parts[0] + parts[2]), 3)
        for part in ("dispatch", "compute", "combine", "layer"):
            assert row[part]["lowest"] <= row[part]["median"] <= row[part]["highest"]
            assert len(row[part]["of_ranks"]) == 2
    level = {
        (row["routing"], row["placement"]): row["balancedness"] for _, row in first if row["dispatcher"] == "padded"
    }
    assert level["zipf_0.8", "contiguous"] < level["zipf_0.8", "balanced"]
    assert {row["dispatch_megabytes"] < row["combine_megabytes"] for _, row in first} == {False, True}  # FP8
    assert {row["dispatcher"] for _, row in first if row["dispatch_megabytes"] < row["combine_megabytes"]} == {
        "padded_fp8"
    }


@dataclass(frozen=True)
class Spoilt(AroundAllToAll):
    """But for what `spoil` makes of the output."""

    spoil: object

    def combine(self, rows, receipt):
        return self.spoil(self.inner.ranks.rank, self.inner.combine(rows, receipt))


def second_rank_loses_a_token(rank, output):
    return torch.cat([output[:-1], output[-1:] * (rank != 1)])


def rounds_once_more(_, output):  # which whole numbers do not show
    return output.bfloat16().float()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (second_rank_loses_a_token, "rank 1: WrongAnswerError: with experts that are exact it has other bits"),
        (rounds_once_more, "rank 0: WrongAnswerError: a token differs from one rank by 0.00"),
    ],
)
def test_a_wrong_answer_ends_the_run_on_all_ranks(monkeypatch, spoil, found):
    wrong = {"all_to_all": lambda ranks, _: lambda placement: Spoilt(AllToAll(ranks, placement), spoil)}
    monkeypatch.setattr(course_module, "DISPATCHERS", wrong)

    def fault(ranks):
        with pytest.raises(FleetError) as raised, torch.no_grad():
            measure(replace(TINY, dispatchers=("all_to_all",)), ranks)
        return str(raised.value)

    first, second = in_threads(fault, ranks_in_threads(2))
    assert first == second
    assert found in first
    assert first.startswith("Cell(dispatcher='all_to_all', shape='tiny', tokens=5, routing='uniform'")


def test_what_the_budget_leaves_out_and_what_no_machine_measures_is_listed():
    wanted = replace(TINY, dispatchers=("padded", "low_latency", "symmetric"), tokens=(5, 129))
    first, second = run(wanted, budget=-1.0)
    assert first == second
    assert {kind for kind, _ in first} == {"not_run"}
    reasons = {(row["dispatcher"], row["tokens"]): row["why"] for _, row in first}
    assert reasons.pop(("low_latency", 129)).startswith("slabs of every expert hold all tokens: for 128 tokens")
    assert set(reasons.values()) == {SPENT}
    assert [Cell(**{k: v for k, v in row.items() if k != "why"}) for _, row in first] == wanted.cells(2)
    for kind, row in run(replace(TINY, dispatchers=("symmetric",)))[0]:
        assert kind == "not_run"
        assert "needs a CUDA device" in row["why"]


def test_the_kit_lists_what_ranks_cannot_have():
    ((kind, row),) = in_threads(lambda ranks: conform("symmetric", ranks), ranks_in_threads(1))
    assert (kind, row["dispatcher"], row["kit"]) == ("not_run", "symmetric", True)
    assert "needs a CUDA device" in row["why"]
    assert {kind for kind, _ in in_threads(lambda ranks: conform("local", ranks), ranks_in_threads(2))} == {"kit"}


def test_a_token_draws_different_experts_as_popular_as_they_are_said_to_be():
    for exponent in ROUTINGS.values():
        generator = torch.Generator().manual_seed(3)
        ids = drawn(4000, 6, 2, exponent, generator)
        assert (ids[:, 0] != ids[:, 1]).all()
        first = torch.bincount(ids[:, 0], minlength=6) / 4000  # the first one drawn has the chances themselves
        chances = torch.tensor([(e + 1) ** -exponent for e in range(6)])
        assert torch.allclose(first, chances / chances.sum(), atol=0.03)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("shape", ["qwen3_30b", "dsv3"])
def test_zipf_leaves_contiguous_ranks_uneven_and_balanced_ones_level(shape, size):
    job = SimpleNamespace(shape=SHAPES[shape], ranks=SimpleNamespace(size=size))
    ids = drawn(2048, job.shape.num_experts, job.shape.top_k, 0.8, torch.Generator().manual_seed(1))
    level = {}
    for name in ("contiguous", "balanced"):
        placement = placed(name, job, 0.8)
        assert placement.num_slots == job.shape.num_experts
        rank = {e: r for r, experts in enumerate(placement.experts) for e in experts}
        carried = Counter(rank[e] for e in ids.flatten().tolist())
        level[name] = sum(carried.values()) / size / max(carried.values())
    assert level["contiguous"] < 0.75
    assert level["balanced"] > 0.95


def test_what_goes_where_is_counted_as_a_loop_counts_it():
    placement = Placement(12, ((0, 3, 5, 7, 9, 11), (1, 2, 4, 6, 8, 10)))

    def one(ranks):
        job = Job.of("tiny", ranks, torch.float32)
        calls = [call(job, 7, 0.8, seed) for seed in (0, 1)]
        return flows(job, placement, calls), [routing.topk_ids.tolist() for _, routing in calls]

    (found, mine), (same, other) = in_threads(one, ranks_in_threads(2))
    tokens, pairs = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    for source, calls in enumerate((mine, other)):
        for ids in (token for own in calls for token in own):
            goes = [int(e in placement.experts[1]) for e in ids]
            for rank in range(2):
                pairs[source, rank] += goes.count(rank) / 2
                tokens[source, rank] += (rank in goes) / 2
    assert torch.equal(found[0], same[0])
    assert torch.equal(found[0], tokens)
    assert torch.equal(found[1], pairs)
    assert busiest(tokens) == max(tokens[0, 1], tokens[1, 0])


def test_sums_of_the_exact_experts_are_whole_halves_and_show_every_expert():
    def one(ranks):
        job = Job.of("tiny", ranks, torch.bfloat16)
        experts = ExactExperts.of(job)
        rows, routing = exact_call(call(job, 9, 0.0, 0), seed=1)
        return experts.signs, rows, routing, experts(StandardBatch(rows, routing))

    ((signs, rows, routing, output),) = in_threads(one, ranks_in_threads(1))
    wanted = torch.zeros(rows.shape, dtype=torch.float64)
    for token, (ids, weights) in enumerate(zip(routing.topk_ids.tolist(), routing.topk_weights.tolist(), strict=True)):
        for expert, weight in zip(ids, weights, strict=True):
            wanted[token] += weight * signs[expert].double() * rows[token].double()
    assert torch.equal(output.double(), wanted)
    assert (wanted * 2 == (wanted * 2).round()).all()
    assert wanted.abs().max() <= 2 * 3.5 * 3
    assert len({tuple(row) for row in signs.tolist()}) == 12
    outside = Routing(torch.full_like(routing.topk_ids, 12), routing.topk_weights)
    assert not ExactExperts(signs)(StandardBatch(rows, outside)).any()


def test_the_report_is_whole_after_every_row(tmp_path):
    file = tmp_path / "found.json"
    report = Report({"num_ranks": 2}, file, shown=False)
    report.add("not_run", {"why": "a"}, 1.0)
    report.add("not_run", {"why": "b"}, 2.04)
    assert json.loads(file.read_text()) == {
        "num_ranks": 2,
        "seconds": 2.0,
        "kit": [],
        "rows": [],
        "not_run": [{"why": "a"}, {"why": "b"}],
    }
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


def test_what_is_asked_for_has_to_exist(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert asked([], cuda=True).shapes == ("qwen3_30b", "dsv3")
    assert asked([], cuda=True).tokens == (1, 8, 64, 512, 4096)
    for arguments, said in (
        (["--shapes", "tiny,qwen"], "'qwen' is none of qwen3_30b"),
        (["--tokens", "1,0"], "--tokens: '0' is no whole number of at least 1"),
        (["--tokens", "1,x"], "--tokens: 'x' is no whole number"),
        (["--rounds", "0"], "--rounds: '0' is no whole number of at least 1"),
        (["--threads", "0"], "--threads: '0' is no whole number of at least 1"),
        (["--recorder", "-1"], "--recorder: '-1' is no whole number of at least 0"),
        (["--out", "no/such/folder/x.json"], "--out no/such/folder/x.json cannot be written"),
        (["--out", str(ROOT)], "cannot be written: give a file"),
    ):
        with pytest.raises(SystemExit):
            asked(arguments, cuda=False)
        assert said in capsys.readouterr().err
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(SystemExit):
        asked([], cuda=False)
    assert "start with torchrun" in capsys.readouterr().err


@pytest.mark.dist
def test_one_command_measures_two_processes(tmp_path):
    out = tmp_path / "two.json"
    options = ["--shapes", "tiny", "--tokens", "3", "--rounds", "1", "--dispatchers", "all_to_all,local"]
    program = ["benchmarks/expert_parallel.py", *options, "--commit", "abc", "--out", str(out)]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["commit"], found["num_ranks"], found["backend"]) == ("abc", 2, "gloo")
    assert list(found["machines"].values()) == [2]
    assert found["shapes"]["tiny"] == vars(SHAPES["tiny"])
    assert len(found["rows"]) == 5
    assert not found["not_run"]
    assert done.stdout.count("layer/sum") == 5


PAGE = "docs/performance/expert_parallelism.md"


def test_the_pages_tables_are_those_of_the_results():
    documents = {
        size: json.loads((ROOT / f"benchmarks/results/dispatch_gloo_x{size}.json").read_text(encoding="utf-8"))
        for size in (1, 2, 4)
    }
    assert not any(found["not_run"] for found in documents.values())
    rows = {
        (size, row["shape"], row["routing"], row["placement"], row["dispatcher"]): row
        for size, found in documents.items()
        for row in found["rows"]
        if row["tokens"] == 64
    }
    traffic = (("uniform", "contiguous"), ("zipf_0.8", "contiguous"), ("zipf_0.8", "balanced"))
    level = [
        [f"{shape}, {size}", *(f"{rows[size, shape, *own, 'padded']['balancedness']:.2f}" for own in traffic)]
        for shape in ("qwen3_30b_small", "dsv3_small")
        for size in (2, 4)
    ]
    assert cells(PAGE, "shape, ranks") == level
    layers = []
    for name in documents[1]["dispatchers"]:
        found = [rows[size, "dsv3_small", "uniform", "contiguous", name] for size in (1, 2, 4)]
        layers.append(
            [f"`{name}`", *(f"{row['layer']['median'] / 1e3:.1f} ({row['layer_over_sum']:.2f})" for row in found)]
        )
    assert cells(PAGE, "dispatcher") == layers


H200 = "benchmarks/results/expert_parallel_h200x2.json"
TRAFFIC = {
    "uniform": ("uniform", "contiguous"),
    "Zipf 0.8": ("zipf_0.8", "contiguous"),
    "Zipf 0.8, balanced": ("zipf_0.8", "balanced"),
}


def as_the_page_says(row):
    """The cells of a row behind its dispatcher."""
    dispatch, compute, combine, layer = (f"{row[p]['median']:.1f}" for p in ("dispatch", "compute", "combine", "layer"))
    if row["dispatcher"] == "local":
        return [compute, layer, "", "", ""]
    there, back = (f"{row[f'{way}_gigabytes_a_second']:.0f}" for way in ("dispatch", "combine"))
    ratios = [f"{row[over]:.2f}" for over in ("layer_over_sum", "layer_over_max")]
    return [f"{dispatch} / {compute} / {combine}", layer, f"{there}, {back}", *ratios]


@pytest.mark.parametrize("shape", ["qwen3_30b", "dsv3"])
def test_the_pages_tables_of_two_gpus_are_those_of_the_results(shape):
    rows = json.loads((ROOT / H200).read_text(encoding="utf-8"))["rows"]
    measured = {tuple(row[axis] for axis in Cell.__dataclass_fields__): row for row in rows}
    quoted = cells(PAGE, f"{shape}, tokens")
    wanted = [
        (tokens, traffic, dispatcher)
        for tokens in ("64", "4096")
        for traffic in TRAFFIC
        for dispatcher in ("local", "symmetric", "symmetric_fp8", "padded")
        if (dispatcher, traffic) != ("local", "Zipf 0.8, balanced")
    ]
    assert [(tokens, traffic, dispatcher.strip("`")) for tokens, traffic, dispatcher, *_ in quoted] == wanted
    for tokens, traffic, dispatcher, *figures in quoted:
        row = measured[dispatcher.strip("`"), shape, int(tokens), *TRAFFIC[traffic]]
        assert figures == as_the_page_says(row)
