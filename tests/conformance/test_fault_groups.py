"""Equal faults are told once, with what their cases share, the smallest case to repeat, and every fault in JSON."""

from dataclasses import replace

import pytest

from moesaic import Machine, SwiGLU
from moesaic.conformance import Outcome, Status, base_case, conform
from moesaic.conformance.case_facts import Shared, facts, shared, size
from moesaic.conformance.fault_group import fault_groups
from tests.conformance import wrong

CPU = Machine.current("cpu")
BASE = base_case(wrong.DECLARED)
BIASED = BASE.changed(bias=True)


def quick(backend, *checks):
    return conform(backend, CPU, checks=checks, quick=True)


def test_equal_faults_are_one_group_with_the_fact_that_tells_them_apart():
    report = quick(wrong.DropsBias(), "equals_reference")
    [group] = report.groups
    failing = [fault.case for fault in report.faults]
    tried = report.counts["passed"] + report.counts["failed"]
    assert group.shared == Shared(("bias=True",), exact=True)
    assert group.headline == (f"failed equals_reference: {len(failing)} of {tried} cases, exactly those with bias=True")
    assert size(group.smallest.case) == min(map(size, failing))


def test_two_facts_that_have_to_meet_are_both_named():
    [group] = quick(wrong.DropsBiasOfLongRows(), "equals_reference").groups
    assert group.shared.exact
    assert sorted(group.shared.facts) == ["bias=True", "hidden_size of at least 185"]


def test_a_fault_wherever_there_is_a_row():
    [group] = quick(wrong.SwapsGateAndUp(), "equals_reference").groups
    assert group.shared == Shared(("padding of at most 0.7",), exact=True)  # at 1 there is none


def test_a_fault_on_every_case_shares_nothing():
    cases = [BASE, BIASED, replace(BASE, seed=1)]
    [group] = conform(wrong.SwapsGateAndUp(), CPU, checks=["equals_reference"], cases=cases).groups
    assert group.shared == Shared()
    assert group.headline == "failed equals_reference: all 3 cases"


def test_checks_and_kinds_are_told_apart():
    kinds = [("a: zeros", "1.5"), ("a: zeros", "2.5"), ("b: zeros", "1.5")]
    outcomes = [Outcome("x", BIASED, Status.FAILED, f"{kind} {got}", kind) for kind, got in kinds]
    outcomes += [Outcome("y", BIASED, Status.FAILED, "a", "a: zeros"), Outcome("x", BASE, Status.HUNG, "no answer")]
    outcomes += [Outcome("x", BASE, Status.PASSED), Outcome("x", BASE, Status.SKIPPED, "not here")]
    groups = fault_groups(outcomes)
    assert [(g.smallest.check, g.smallest.status, len(g.faults), g.tried) for g in groups] == [
        ("x", Status.FAILED, 2, 5),
        ("x", Status.FAILED, 1, 5),
        ("y", Status.FAILED, 1, 1),
        ("x", Status.HUNG, 1, 5),
    ]


def test_errors_of_one_line_are_one_group_whatever_they_say():
    report = quick(wrong.Raises(), "one_token")
    assert {fault.status for fault in report.faults} == {Status.ERRORED}
    assert len(report.faults) > 10
    assert len(report.groups) == 1


def test_what_is_malformed_is_told_one_by_one():
    report = conform(wrong.Malformed(), CPU)
    assert [group.headline for group in report.groups] == ["failed declaration"] * len(report.faults)
    assert len(report.faults) > 1


def test_the_document_has_the_groups_and_every_fault():
    report = quick(wrong.DropsBias(), "equals_reference")
    document = report.as_document()
    [group] = document["groups"]
    assert list(group) == ["check", "status", "cases", "tried", "shared", "exact", "detail", "command"]
    assert (group["cases"], group["shared"], group["exact"]) == (len(document["faults"]), ["bias=True"], True)
    assert len(document["faults"]) == len(report.faults) > 5


def test_a_single_case_shares_everything_with_itself_and_is_told_nothing():
    assert shared([BIASED], [BASE]) == Shared()
    assert shared([BIASED, replace(BIASED, seed=1)], []) == Shared()


def test_facts_that_passing_cases_have_as_well_are_left_out():
    failing = [BIASED, replace(BIASED, seed=1)]
    found = shared(failing, [BASE, replace(BIASED, num_tokens=3)])
    assert found == Shared(("bias=True", f"num_tokens={BASE.num_tokens}"), exact=True)
    assert shared(failing, [replace(BIASED, num_tokens=99)]).exact
    assert shared(failing, [BASE, replace(BIASED, seed=0)]) == Shared(("bias=True",), exact=False)


@pytest.mark.parametrize(
    "fact",
    ["dtype float32", "bias=False", "Standard() fed", "bound as Standard()", "SwiGLU", "limit per expert", "skew=1"],
)
def test_what_can_be_said_of_a_case(fact):
    case = BASE.changed(activation=SwiGLU(limit=tuple(range(1, BASE.problem.num_experts + 1))))
    assert fact in facts(case)


def test_every_fact_is_said_once():
    for case in (BASE, BIASED):
        assert len(set(facts(case))) == len(facts(case))
