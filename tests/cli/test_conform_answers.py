"""`moesaic conform`: several checks and cases, declined cases, faults for one reason, pieces of other kinds."""

import dataclasses
import re

import pytest

from moesaic import Reference, SwiGLU
from moesaic.conformance import base_case
from moesaic.conformance.case_text import case_text
from tests.conformance import wrong

RIGHT, BIASED = "tests.conformance.wrong:Right", "tests.conformance.wrong:DropsBias"
CASE = base_case(wrong.DECLARED)
DECLINED = CASE.changed(activation=SwiGLU(beta=2.0))


def test_checks_and_cases_may_be_repeated(moesaic):
    other = dataclasses.replace(CASE, seed=3)
    asked = ("--check", "two_runs", "--check", "one_token", "--check", "two_runs")
    answer = moesaic("conform", RIGHT, *asked, "--case", case_text(CASE), "--case", case_text(other), "--json")
    [report] = answer.document["backends"]
    assert report["checks"] == {"two_runs": {"passed": 2}, "one_token": {"passed": 2}}
    moesaic("conform", RIGHT, *asked, "--check", "luck").assert_bad_input("'luck'")


def test_a_case_that_the_backend_declines_is_no_success(moesaic):
    answer = moesaic("conform", RIGHT, "--case", repr(DECLINED))
    assert answer.code == 2
    assert answer.out.splitlines()[-1].startswith("right declines this case: activation_constant: needs SwiGLU.beta")
    assert "no fault found" not in answer.out


def test_a_check_with_nothing_to_try_is_no_success(moesaic):
    single = CASE.changed(num_experts=1, top_k=1)
    answer = moesaic("conform", RIGHT, "--check", "float32_sum", "--case", case_text(single))
    assert answer.code == 2
    assert answer.out.splitlines()[-1] == "right: nothing was tried: a sum needs two slots and two experts"


def test_without_a_name_some_backends_may_decline(moesaic):
    wide = case_text(base_case(Reference.capabilities))  # float64, which few backends declare
    answer = moesaic("conform", "--device", "cpu", "--check", "two_runs", "--case", wide)
    assert answer.code == 0, answer
    assert "torch_grouped declines this case: dtype" in answer.out


def test_what_fails_for_the_same_reason_is_one_line(moesaic):
    asked = [word for check in ("equals_reference", "wide_values", "one_token") for word in ("--check", check)]
    cases = [CASE, CASE.changed(bias=True), CASE.changed(bias=True, num_experts=1), CASE.changed(num_experts=1100)]
    asked += [word for case in cases for word in ("--case", case_text(case))]
    answer = moesaic("conform", BIASED, *asked, "--device", "cpu")
    assert answer.code == 1
    assert len(re.findall("^failed ", answer.out, re.MULTILINE)) == 1
    said = "also fail, probably for the same reason as equals_reference (--json has their text): wide_values, one_token"
    assert said in answer.out.splitlines()
    [skipped] = [line for line in answer.out.splitlines() if line.startswith("skipped ")]
    assert re.match(r"skipped \d+: \d+ ", skipped)


def test_printed_cases_leave_out_what_is_at_its_default(moesaic):
    answer = moesaic("conform", BIASED, "--check", "equals_reference", "--case", case_text(CASE.changed(bias=True)))
    [repeat] = re.findall(r"^  moesaic conform .*$", answer.out, re.MULTILINE)
    assert "scheme" not in repeat
    assert "weight_on_input" not in repeat
    assert "bias=True" in repeat


@pytest.mark.parametrize(
    ("spelled", "kit"),
    [
        ("moesaic:SwiGLU", "ActivationConformance"),
        ("moesaic:Local", "DispatcherConformance"),
        ("moesaic.routers:SoftmaxTopK", "RouterConformance"),
        ("moesaic:MXFP4", "FormatConformance"),
    ],
)
def test_another_kind_of_piece_is_told_its_own_kit(moesaic, spelled, kit):
    moesaic("conform", spelled).assert_bad_input("needs a Backend", f"moesaic.conformance.{kit}")
