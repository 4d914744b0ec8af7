"""The search, with a bench and a clock that are told what to say."""

import itertools
import weakref

import pytest
import torch

from moesaic.errors import TuningError
from moesaic.tuning import Bench, Budget, Fastest, Product, fastest
from moesaic.tuning.search import FINALISTS, ROUNDS, SCREENED

DEFAULT, A, B, C = (Product(group=group) for group in (8, 4, 16, 2))


class Timer:
    """One call after another takes what `seconds` says."""

    def __init__(self, bench, choice):
        self.bench, self.choice = bench, choice

    def __call__(self):
        self.bench.calls.append(self.choice)
        taken = next(self.bench.times[self.choice])
        self.bench.now += taken
        return taken


class Told(Bench):
    """`times`: seconds of each choice, one number or several in turn; `faults`: choice -> why it is wrong."""

    def __init__(self, times, faults=None, checking=0.0):
        self.times = {c: itertools.cycle(t if isinstance(t, tuple) else (t,)) for c, t in times.items()}
        self.faults, self.checking = faults or {}, checking
        self.now, self.calls, self.timers, self.most = 0.0, [], [], 0

    def fault(self, choice):
        self.now += self.checking
        return self.faults.get(choice, "")

    def timer(self, choice):
        timer = Timer(self, choice)
        self.timers.append(weakref.ref(timer))
        self.most = max(self.most, sum(ref() is not None for ref in self.timers))
        return timer

    def search(self, *choices, seconds=1e9):
        return fastest(self, choices, Budget.of(seconds, lambda: self.now))


def test_the_fastest_right_choice_wins():
    found = Told({DEFAULT: 3.0, A: 2.0, B: 2.5}).search(DEFAULT, A, B)
    assert found == Fastest(A, 2.0, 3.0, ())


def test_a_wrong_choice_never_wins_and_is_never_timed():
    bench = Told({DEFAULT: 3.0, A: 1e-9, B: 2.0}, {A: "its rows are wrong"})
    assert bench.search(DEFAULT, A, B) == Fastest(B, 2.0, 3.0, ((A, "its rows are wrong"),))
    assert A not in bench.calls


def test_a_default_that_is_wrong_is_an_error():
    with pytest.raises(TuningError, match=r"own choice Product\(gather=True, group=8, blocks=0\) .*: all zeros"):
        Told({DEFAULT: 3.0, A: 1.0}, {DEFAULT: "all zeros"}).search(DEFAULT, A)


def test_without_a_candidate_there_is_nothing_to_be_found():
    with pytest.raises(TuningError, match="no candidate"):
        Told({}).search()


def test_the_middle_of_several_times_counts_not_the_best():
    """A is once in a while very fast, as a timer may err; B is faster as a rule."""
    rarely = (2.1, 0.5, 2.1, 2.1, 2.1)
    assert Told({DEFAULT: 3.0, A: rarely, B: 2.0}).search(DEFAULT, A, B).choice == B
    seldom = (0.1, 9.0, 9.0, 9.0, 9.0)
    bench = Told({DEFAULT: 2.0, A: seldom})
    assert bench.search(DEFAULT, A).choice == DEFAULT
    assert bench.calls.count(A) == SCREENED


class Small(Told):
    """Has memory for so many timers at a time, and none for a check of `large`."""

    def __init__(self, times, room=99, large=None):
        super().__init__(times)
        self.room, self.large = room, large

    def fault(self, choice):
        if choice == self.large:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried")
        return super().fault(choice)

    def timer(self, choice):
        if sum(ref() is not None for ref in self.timers) == self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().timer(choice)


def test_a_choice_that_does_not_fit_loses():
    found = Small({DEFAULT: 3.0, A: 1.0, B: 2.0}, large=A).search(DEFAULT, A, B)
    assert found == Fastest(B, 2.0, 3.0, ((A, "it does not run: CUDA out of memory. Tried"),))


def test_a_finalist_that_does_not_fit_beside_faster_ones_loses():
    found = Small({DEFAULT: 3.0, A: 2.0, B: 1.9}, room=2).search(DEFAULT, A, B)
    assert found == Fastest(B, 1.9, 3.0, ((A, "it does not run: CUDA out of memory"),))


@pytest.mark.parametrize("small", [{"large": DEFAULT}, {"room": 0}], ids=str)
def test_a_default_that_does_not_fit_is_the_devices_own_error(small):
    with pytest.raises(torch.OutOfMemoryError):
        Small({DEFAULT: 3.0, A: 1.0}, **small).search(DEFAULT, A)


def test_the_default_stays_unless_beaten_by_more_than_its_spread():
    spread = (3.0, 3.1, 2.9, 3.0, 2.8, 3.2, 3.0)
    assert Told({DEFAULT: spread, A: 2.95}).search(DEFAULT, A).choice == DEFAULT
    assert Told({DEFAULT: spread, A: 2.7}).search(DEFAULT, A).choice == A
    assert Told({DEFAULT: 3.0, A: 3.0}).search(DEFAULT, A).choice == DEFAULT


def test_a_lucky_first_measurement_does_not_win():
    """Fast as long as it is timed alone, slow beside the others."""
    lucky = (1.0,) * SCREENED + (5.0,) * ROUNDS
    assert Told({DEFAULT: 3.0, A: lucky, B: 2.9}).search(DEFAULT, A, B).choice == DEFAULT


def test_the_last_rounds_are_in_turns_and_among_few():
    others = [Product(group=group) for group in range(100, 110)]
    bench = Told({DEFAULT: 9.0, **{choice: 2.0 + n / 100 for n, choice in enumerate(others)}})
    assert bench.search(DEFAULT, *others).choice == others[0]
    last = bench.calls[11 * SCREENED :]
    rounds = [last[n : n + FINALISTS + 1] for n in range(0, len(last), FINALISTS + 1)]
    assert len(rounds) == ROUNDS
    assert all(set(each) == {DEFAULT, *others[:FINALISTS]} for each in rounds)
    assert rounds[0] == rounds[1][::-1] == rounds[2]


def test_what_is_far_behind_is_not_timed_again():
    bench = Told({DEFAULT: 2.0, A: 1.0, B: 3.0})
    bench.search(DEFAULT, A, B)
    assert bench.calls.count(B) == SCREENED
    assert bench.calls.count(DEFAULT) == bench.calls.count(A) == SCREENED + ROUNDS


def test_no_more_timers_are_held_than_there_are_finalists():
    """Each holds a graph and its memory."""
    others = [Product(group=group) for group in range(100, 120)]
    bench = Told(dict.fromkeys((DEFAULT, *others), 1.0))
    bench.search(DEFAULT, *others)
    assert bench.most == FINALISTS + 1


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 7])
def test_a_budget_that_ends_before_every_choice_was_tried_gives_nothing(calls):
    bench = Told({DEFAULT: 1.0, A: 0.5, B: 0.25}, checking=10.0)
    assert bench.search(DEFAULT, A, B, seconds=3 * (10.0 + SCREENED) * calls / 10 + 1e-9) is None


def test_a_budget_that_ends_in_the_last_rounds_gives_nothing():
    times = {DEFAULT: 1.0, A: 0.5}
    enough = (SCREENED + ROUNDS) * 1.5
    assert Told(times).search(DEFAULT, A, seconds=enough - 1.5) is None
    assert Told(times).search(DEFAULT, A, seconds=enough).choice == A


def test_whoever_draws_a_bar_hears_of_every_choice():
    bench, heard = Told({DEFAULT: 1.0, A: 1.0, B: 1.0}, {A: "wrong"}), []
    fastest(bench, (DEFAULT, A, B), Budget.of(1e9, lambda: bench.now), lambda: heard.append(bench.now))
    assert len(heard) == 3


def test_a_budget_runs_by_the_clock_that_it_is_given():
    now = [100.0]
    budget = Budget.of(8.0, lambda: now[0])
    half = budget.share(2)
    assert (budget.left, half.left) == (8.0, 4.0)
    now[0] = 105.0
    assert (budget.spent, half.spent) == (False, True)
    now[0] = 108.0
    assert budget.spent
    assert budget.share(3).spent


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "60"])
def test_a_budget_needs_a_number_above_zero(seconds, unchecked):
    with pytest.raises(TuningError, match="seconds"):
        Budget.of(seconds, lambda: 0.0)
