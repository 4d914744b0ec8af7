"""What a report says beside its faults: that nothing was tried, what was skipped, what fails for the same reason."""

import pytest

from moesaic import Machine, SwiGLU
from moesaic.conformance import CHECKS, Outcome, Report, Status, base_case, conform
from moesaic.conformance.checks import in_turn
from tests.conformance import wrong

CPU = Machine.current("cpu")
CASE = base_case(wrong.DECLARED)
UNDECLARED = CASE.changed(activation=SwiGLU(beta=2.0))


def test_values_are_told_first_and_what_needs_a_fresh_process_is_run_first():
    assert CHECKS[0].name == "equals_reference"
    assert in_turn(CHECKS)[0].name == "torch_settings"
    told = []
    report = conform(wrong.Right(), CPU, cases=[CASE], finished=lambda part: told.extend(part.by_check()))
    assert list(report.by_check()) == [check.name for check in CHECKS]
    assert told == [check.name for check in in_turn(CHECKS)]


@pytest.mark.parametrize("checks", [CHECKS, ["two_runs"], ["equals_reference", "declines"]], ids=len)
def test_a_case_that_is_declined_is_no_case_without_a_fault(checks):
    report = conform(wrong.Right(), CPU, checks=checks, cases=[UNDECLARED])
    assert report.faults == ()
    assert report.verdict.startswith("right declines this case: activation_constant: needs SwiGLU.beta=0.0, got 2.0")


def test_several_cases_that_are_declined_are_counted():
    cases = [UNDECLARED, UNDECLARED.changed(bias=True)]
    assert "declines all 2 cases: " in conform(wrong.Right(), CPU, checks=["two_runs"], cases=cases).verdict
    assert not conform(wrong.Right(), CPU, checks=["two_runs"], cases=[CASE, UNDECLARED]).nothing_tried


def test_a_check_with_nothing_to_try_says_so():
    single = CASE.changed(num_experts=1, top_k=1)
    verdict = conform(wrong.Right(), CPU, checks=["float32_sum"], cases=[single]).verdict
    assert verdict == "right: nothing was tried: a sum needs two slots and two experts"


def test_the_check_of_what_is_declined_can_be_asked_alone():
    assert not conform(wrong.Right(), CPU, checks=["declines"], cases=[UNDECLARED]).nothing_tried


def test_what_fails_where_values_do_is_named_once():
    report = conform(wrong.DropsBias(), CPU, quick=True, checks=["wide_values", "equals_reference", "one_token"])
    assert report.echoes == ("wide_values", "one_token")
    document = report.as_document()
    assert document["echoes"] == ["wide_values", "one_token"]
    assert {group["check"] for group in document["groups"]} == {"equals_reference", "wide_values", "one_token"}


def test_what_fails_elsewhere_too_or_otherwise_is_told_in_full():
    case, other = CASE, CASE.changed(bias=True)
    values = Outcome("equals_reference", case, Status.FAILED)

    def echoes(*others):
        return Report("x", CPU, (values, *others), ()).echoes

    assert echoes(Outcome("two_runs", case, Status.FAILED)) == ("two_runs",)
    assert echoes(Outcome("two_runs", case, Status.CRASHED)) == ()
    assert echoes(Outcome("two_runs", case, Status.FAILED), Outcome("two_runs", other, Status.FAILED)) == ()
    assert echoes(Outcome("declines", case, Status.FAILED)) == ()
    assert Report("x", CPU, (Outcome("two_runs", case, Status.FAILED),), ()).echoes == ()


def test_skips_are_counted_by_reason():
    report = conform(wrong.Right(), CPU, checks=["gradients", "capture", "two_runs"], cases=[CASE, UNDECLARED])
    assert sum(report.skips.values()) == report.counts["skipped"]
    assert report.skips["only a cuda device can break it"] == 1
    assert report.as_document()["skips"] == report.skips
    assert list(report.skips.values()) == sorted(report.skips.values(), reverse=True)


def test_a_cell_that_the_checks_asked_for_do_not_execute_says_which_does():
    report = conform(wrong.Right(), CPU, checks=["two_runs", "one_token"], cases=[CASE])
    reasons = {str(result.cell): result.reason for result in report.not_executed}
    assert reasons["bias: yes"] == "not tried: equals_reference executes such a cell"
    assert "deterministic: yes" not in reasons
    full = conform(wrong.Right(), CPU, checks=["equals_reference"], cases=[CASE])
    reasons = {str(result.cell): result.reason for result in full.not_executed}
    assert reasons["bias: yes"] == "no case of right that was run has it"
    assert reasons["deterministic: yes"] == "not tried: two_runs executes such a cell"
