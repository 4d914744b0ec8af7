"""What the benchmark of expert parallelism says a recorder of load costs: what is compared, how, and what adds."""

import time
from dataclasses import dataclass, replace

import pytest
import torch
from dispatching import course as course_module
from dispatching.cells import Wanted
from dispatching.course import Course
from dispatching.recording import added
from dispatching.report import line
from dispatching.shapes import Job
from dispatching.timing import in_turn
from expert_parallel import asked

from moesaic.dispatch.all_to_all import AllToAll
from moesaic.dispatch.threads import in_threads, ranks_in_threads
from moesaic.errors import FleetError
from tests.around_all_to_all import AroundAllToAll

ROUNDS = 3
TINY = Wanted(
    dispatchers=("all_to_all", "local"),
    shapes=("tiny",),
    tokens=(5,),
    routings=("uniform",),
    placements=("contiguous",),
)


def measure(wanted, ranks, recorder):
    """What this rank reports."""
    jobs = {name: Job.of(name, ranks, torch.float32) for name in wanted.shapes}
    with torch.no_grad():
        return list(Course(ranks, jobs, 1, 1e9, time.monotonic(), recorder).run(wanted.cells(ranks.size)))


@pytest.mark.parametrize("recorder", [0, ROUNDS])
def test_a_row_says_what_counting_adds_if_it_is_asked_for(recorder):
    first, second = in_threads(lambda ranks: measure(TINY, ranks, recorder), ranks_in_threads(2))
    assert [row["dispatcher"] for _, row in first] == ["all_to_all", "local"]
    for (_, row), (_, same) in zip(first, second, strict=True):
        assert ("recorder" in row) == (" recorder " in line(row)) == bool(recorder)
        if recorder:
            found = row["recorder"]
            assert found == same["recorder"]
            assert found["rounds"] == ROUNDS
            assert min(found["without"], found["recorded"], found["launched"]) > 0
            for way in ("recorded", "launched"):
                low, high = found[f"{way}_quartiles"]
                assert low <= found[f"{way}_percent"] <= high


@dataclass(frozen=True)
class Twice(AroundAllToAll):
    """The second rank counts each slot twice by itself."""

    def dispatch_counted(self, hidden_states, routing, recorder, layer):
        for _ in range(self.inner.ranks.rank):
            recorder.record(layer, routing.topk_ids)
        return super().dispatch_counted(hidden_states, routing, recorder, layer)


def test_a_wrong_count_ends_the_run_on_all_ranks(monkeypatch):
    wrong = {"all_to_all": lambda ranks, _: lambda placement: Twice(AllToAll(ranks, placement))}
    monkeypatch.setattr(course_module, "DISPATCHERS", wrong)

    def fault(ranks):
        with pytest.raises(FleetError) as raised:
            measure(replace(TINY, dispatchers=("all_to_all",)), ranks, ROUNDS)
        return str(raised.value)

    first, second = in_threads(fault, ranks_in_threads(2))
    assert first == second
    assert "rank 1: WrongAnswerError: recorded: 120 slots are counted of 60, or those of other experts" in first


def test_every_second_round_goes_backwards():
    (alone,) = ranks_in_threads(1)
    called = []
    works = {name: [lambda name=name: called.append(name)] * calls for name, calls in (("a", 1), ("b", 2), ("c", 1))}
    found = in_turn(works, alone, 3, graph=False)
    assert "".join(called) == "abbc" + "abbc" + "cbba" + "abbc"  # the first to warm up
    assert {name: [len(own) for own in rounds] for name, rounds in found.items()} == {n: [1, 1, 1] for n in "abc"}


def test_what_is_added_is_the_median_of_differences_within_a_round():
    # As the machine became twice as slow in the third round, medians alone would say 16.7 %.
    times = {"without": [10.0, 12.0, 20.0], "recorded": [11.0, 14.0, 20.0], "launched": [13.0, 16.0, 24.0]}
    assert added(times) == {
        "without": 12.0,
        "recorded": 14.0,
        "launched": 16.0,
        "recorded_percent": 8.33,
        "recorded_quartiles": [4.17, 12.5],
        "launched_percent": 33.33,
        "launched_quartiles": [29.17, 33.33],
    }


def test_rounds_are_a_whole_number(monkeypatch, capsys):
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert asked([], cuda=True).recorder == 0
    assert asked(["--recorder", "15"], cuda=True).recorder == 15
    with pytest.raises(SystemExit):
        asked(["--recorder", "-1"], cuda=True)
    assert "--recorder: '-1' is no whole number of at least 0" in capsys.readouterr().err
