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
    assert group.shared == Shared(("bias=True",))
    assert group.headline == (f"failed equals_reference: {len(failing)} of {tried} cases, exactly those with bias=True")
    assert size(group.smallest.case) == min(map(size, failing))


def test_two_facts_that_have_to_meet_are_both_named():
    [group] = conform(wrong.DropsBiasOfLongRows(), CPU, checks=["equals_reference"]).groups
    assert not group.shared.either
    bias, size = sorted(group.shared.facts)
    assert bias == "bias=True"
    assert int(size.removeprefix("hidden_size of at least ")) >= 100


def test_a_fault_wherever_there_is_a_row():
    [group] = quick(wrong.SwapsGateAndUp(), "equals_reference").groups
    [fact] = group.shared.facts
    assert float(fact.removeprefix("padding of at most ")) < 1  # at 1 there is none


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
    assert list(group) == ["check", "status", "cases", "tried", "shared", "either", "detail", "command"]
    assert (group["cases"], group["shared"], group["either"]) == (len(document["faults"]), ["bias=True"], False)
    assert len(document["faults"]) == len(report.faults) > 5


def test_a_single_case_shares_everything_with_itself_and_is_told_nothing():
    assert shared([BIASED], [BASE]) == Shared()
    assert shared([BIASED, replace(BIASED, seed=1)], []) == Shared()


def test_facts_that_passing_cases_have_as_well_are_left_out():
    failing = [BIASED, replace(BIASED, seed=1)]
    found = shared(failing, [BASE, replace(BIASED, num_tokens=3)])
    assert found == Shared(("bias=True", f"num_tokens={BASE.num_tokens}"))
    assert shared(failing, [replace(BIASED, num_tokens=99)]).facts


def test_nothing_is_said_where_no_few_facts_tell_failing_cases_from_passing_ones():
    failing = [BIASED, replace(BIASED, seed=1)]
    assert shared(failing, [BASE, replace(BIASED, seed=0)]) == Shared()


def test_what_nearly_all_passing_cases_have_is_not_named():
    failing = [BIASED, replace(BIASED, seed=1)]
    passing = [replace(BIASED, num_tokens=40 + n, seed=1) for n in range(20)]
    common = [*passing, replace(BIASED, skew=3.0, num_tokens=BASE.num_tokens)]
    assert shared(failing, common) == Shared()  # but for the last all have skew=1


def test_two_faults_at_once_are_told_as_two_facts():
    report = quick(wrong.DropsBiasAndLimit(), "equals_reference")
    [group] = report.groups
    assert group.shared.either
    failing = [fault.case for fault in report.faults]
    biased = sum(case.problem.bias for case in failing)
    limits = [case.problem.activation.limit for case in failing]
    limited = sum(isinstance(limit, float) for limit in limits)
    assert group.shared.facts[0] == f"bias=True ({biased})"
    kinds = {f"limit=1.5 ({limits.count(1.5)})", f"limit for all experts, other than None ({limited})"}
    assert group.shared.facts[1] in kinds
    assert group.headline.endswith(f", exactly those with bias=True ({biased}), or {group.shared.facts[1]}")


def test_a_constant_that_fails_in_both_of_its_forms_is_one_fact():
    limits = [SwiGLU(limit=1.5), SwiGLU(limit=tuple(range(1, BASE.problem.num_experts + 1)))]
    failing = [BASE.changed(activation=activation) for activation in limits]
    assert shared(failing, [BASE, replace(BASE, seed=1)]) == Shared(("limit other than None",))


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
