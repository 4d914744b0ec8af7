"""The kit itself: each wrong backend is killed by the check meant for it, the right one is not."""

import json
from dataclasses import replace

import pytest
import torch

from moesaic import Machine, SwiGLU
from moesaic.conformance import CHECKS, Status, Worker, base_case, cases_of, conform
from moesaic.conformance.cells import cells_of, touched
from moesaic.conformance.noise import deviation
from moesaic.conformance.tolerance import tolerance
from tests.conformance import wrong

CPU = Machine.current("cpu")


def named(name):
    return next(check for check in CHECKS if check.name == name)


def test_the_right_one_conforms():
    with Worker() as worker:  # without run-time type checks, which make a whole kit ten times slower
        report = conform(wrong.Right(), CPU, quick=True, execution=worker)
    assert report.faults == ()
    assert report.not_executed == ()
    assert report.conforms
    assert report.verdict == "right conforms"
    assert report.counts["passed"] > 500


@pytest.mark.parametrize(("backend", "check"), wrong.MEANT, ids=lambda v: getattr(v, "name", v))
def test_a_wrong_one_is_killed_by_the_check_meant_for_it(backend, check):
    report = conform(backend, CPU, checks=[named(check)], quick=True)
    assert {fault.check for fault in report.faults} == {check}
    assert {fault.status for fault in report.faults} == {Status.FAILED}
    assert "conforms" not in report.verdict
    assert all("needs" in fault.detail and "got" in fault.detail for fault in report.faults)


def test_a_malformed_declaration_is_reported_field_by_field_and_nothing_is_run():
    report = conform(wrong.Malformed(), CPU)
    assert {outcome.check for outcome in report.outcomes} == {"declaration"}
    assert all(outcome.status is Status.FAILED for outcome in report.outcomes)
    text = " ".join(fault.detail for fault in report.faults)
    assert all(field in text for field in ("capabilities.dtypes", "capabilities.layouts", "capabilities.row_bytes"))
    assert not report.conforms


def test_an_inherited_declaration_is_malformed():
    text = " ".join(fault.detail for fault in conform(wrong.Inherits(), CPU).faults)
    assert "Inherits.name" in text
    assert "Inherits.capabilities" in text


def test_an_exception_is_reported_and_the_next_case_is_run():
    case = base_case(wrong.DECLARED)
    checks = [named("one_token"), named("equals_reference")]
    report = conform(wrong.Raises(), CPU, checks=checks, cases=[case])
    assert [(o.check, o.status) for o in report.outcomes] == [
        ("one_token", Status.ERRORED),
        ("equals_reference", Status.PASSED),
    ]
    assert "ZeroDivisionError: no tile is that small (wrong.py:" in report.faults[0].detail


def test_the_word_is_refused_for_a_cell_that_was_not_executed():
    report = conform(wrong.Right(), CPU, quick=True, cases=[base_case(wrong.DECLARED)])
    assert report.faults == ()
    assert "conforms" not in report.verdict
    assert not report.conforms
    left = {str(result.cell) for result in report.not_executed}
    assert "activation: SwiGLU.limit per expert" in left
    assert "bias: yes" in left
    assert all(result.reason for result in report.not_executed)


def test_a_declined_case_executes_nothing():
    case = base_case(wrong.DECLARED).changed(output_norm=None, activation=SwiGLU(beta=2.0))
    report = conform(wrong.Right(), CPU, checks=[named("equals_reference")], cases=[case])
    assert [outcome.status for outcome in report.outcomes] == [Status.SKIPPED]
    assert "activation_constant" in report.outcomes[0].detail
    assert not any(result.executed for result in report.cells)


def test_the_document_is_json_and_its_commands_can_be_typed():
    backend = wrong.SwapsGateAndUp()
    report = conform(backend, CPU, checks=[named("equals_reference")], cases=[base_case(wrong.DECLARED)])
    document = json.loads(json.dumps(report.as_document(), allow_nan=False))
    assert document["conforms"] is False
    fault = document["faults"][0]
    spelled = "moesaic conform tests.conformance.wrong:SwapsGateAndUp --check equals_reference --case 'Case("
    assert fault["command"].startswith(spelled)
    assert [group["command"] for group in document["groups"]] == [fault["command"]]


def test_quick_cases_touch_the_same_cells_as_all_cases():
    for quick in (True, False):
        cases = cases_of(wrong.Right(), quick=quick)
        found = {c for case in cases for check in CHECKS for c in touched(case, check.name, wrong.Right(), CPU)}
        assert set(cells_of(wrong.Right())) <= found
    assert len(cases_of(wrong.Right(), quick=True)) < len(cases_of(wrong.Right()))


def test_a_backend_with_limits_gets_cases_inside_them():
    can = replace(wrong.DECLARED, row_bytes=64, max_experts=3, max_top_k=2, duplicate_ids=False, inactive_slots=False)
    limited = type("Limited", (wrong.Around,), {"name": "limited", "capabilities": can})()
    for case in cases_of(limited):
        assert limited.reasons_against(case.problem, replace(CPU, memory_bytes=2**62)) == ()
        assert case.problem.hidden_size * case.problem.dtype.itemsize % 64 == 0


def test_every_check_says_what_it_tries_and_no_two_share_a_name():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.meaning and "\n" not in check.meaning for check in CHECKS)


def test_a_nan_is_no_small_error():
    wanted = torch.ones(9, 4, dtype=torch.float64)
    allowed = tolerance(torch.bfloat16, wrong.UNQUANTIZED, 64, 9)
    assert deviation(torch.full((9, 4), torch.nan), wanted).exceeds(allowed)
    assert not deviation(torch.ones(9, 4), wanted).exceeds(allowed)
