"""What `conform` is asked for: one clear error, or a report that says how to repeat it."""

import shlex

import pytest

from moesaic import Cpu, Machine, MoesaicError, Reference
from moesaic.conformance import CHECKS, Interrupted, Worker, base_case, conform
from moesaic.conformance.case_text import case_text
from moesaic.conformance.execution import Execution, InProcess
from moesaic.conformance.spelling import Spelling, spelling
from tests.conformance import wrong

CPU = Machine.current("cpu")
CASE = base_case(wrong.DECLARED)


def refusal(call):
    with pytest.raises(MoesaicError) as found:
        call()
    return str(found.value)


def test_a_misspelt_check_is_told_the_nearest_names():
    said = refusal(lambda: conform(Reference(), CPU, checks=["two_run"]))
    assert said == "checks got 'two_run', but it needs the name of a check; the nearest are two_runs"
    all_names = refusal(lambda: conform(Reference(), CPU, checks=["q"]))
    assert all(check.name in all_names for check in CHECKS)


@pytest.mark.parametrize(("checks", "part"), [("two_runs", "checks=['two_runs']"), ([], "empty"), ([7], "holds 7")])
def test_checks_are_a_sequence_of_checks(unchecked, checks, part):
    assert part in refusal(lambda: conform(Reference(), CPU, checks=checks))


def test_checks_are_given_by_name_or_as_they_are():
    named = conform(Reference(), CPU, checks=["two_runs"], cases=[CASE])
    given = conform(Reference(), CPU, checks=[c for c in CHECKS if c.name == "two_runs"], cases=[CASE])
    assert named.outcomes == given.outcomes
    assert len(named.outcomes) == 1


@pytest.mark.parametrize(
    ("backend", "part"),
    [(Reference, "the class Reference, but it needs an instance: Reference()"), ("cpu", "is 'cpu', but it needs")],
)
def test_a_backend_is_an_instance(unchecked, backend, part):
    assert part in refusal(lambda: conform(backend, CPU))


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_a_limit_is_seconds_that_can_be_waited(limit):
    assert "Worker.limit" in refusal(lambda: Worker(limit))


def test_parts_of_a_run_are_told_when_each_check_is_finished():
    done, parts = [], []
    report = conform(
        wrong.Right(),
        CPU,
        checks=["one_token", "two_runs"],
        quick=True,
        progress=lambda *counts: done.append(counts),
        finished=parts.append,
    )
    assert [list(part.by_check()) for part in parts] == [["one_token"], ["two_runs"]]
    assert sum(len(part.outcomes) for part in parts) == len(report.outcomes) == done[-1][0] == done[-1][1]
    assert [counts[0] for counts in done] == list(range(1, len(done) + 1))
    executed = {result.cell: result.executed for result in report.cells}
    assert all(r.executed <= executed[r.cell] for part in parts for r in part.cells)


class Stops(Execution):
    """Ctrl-C comes after so many jobs."""

    def __init__(self, after):
        self.after = after
        self.inner = InProcess()

    def run(self, job):
        if not self.after:
            raise KeyboardInterrupt
        self.after -= 1
        return self.inner.run(job)


def test_an_interrupted_run_carries_what_was_tried():
    with pytest.raises(KeyboardInterrupt) as stop:
        conform(wrong.DropsBias(), CPU, checks=["equals_reference"], quick=True, execution=Stops(20))
    assert isinstance(stop.value, Interrupted)
    report = stop.value.report
    assert len(report.outcomes) == 20
    executed = len(report.cells) - len(report.not_executed)
    assert 0 < executed < len(report.cells)
    assert report.verdict == f"drops_bias: interrupted: {executed} of {len(report.cells)} cells executed; no verdict"
    assert not report.conforms
    assert report.as_document()["interrupted"] is True
    assert all(result.reason for result in report.not_executed)


def test_a_backend_is_spelt_as_the_command_line_takes_it():
    assert spelling(Cpu()) == Spelling("cpu")
    assert spelling(wrong.Right()) == Spelling("tests.conformance.wrong:Right")
    said = spelling(wrong.Tiled(rows=8)).repetition("two_runs", CASE)
    assert said == f"conform(Tiled(rows=8), checks=['two_runs'], cases=[{case_text(CASE)}])"
    asked = spelling(Cpu(), "cpu").repetition("two_runs", CASE)
    assert asked == f"moesaic conform cpu --check two_runs --case {shlex.quote(case_text(CASE))} --device cpu"
    there = spelling(wrong.Tiled(rows=8), "cpu").repetition("declaration", None)
    assert there == "conform(Tiled(rows=8), Machine.current('cpu'))"
    assert not spelling(Reference(strict=True)).is_typed
