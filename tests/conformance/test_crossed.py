"""Rows that cover pairs, and the cases that are made of them: everything declared meets everything else."""

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch

from moesaic import BACKENDS, GroupedContiguous, Machine, Reference, SwiGLU
from moesaic.conformance import Status, base_case, cases_of, conform
from moesaic.conformance.contents import contents_of, empty_expert
from moesaic.conformance.covering import covering
from moesaic.conformance.crossed import TOKENS
from moesaic.conformance.footprint import too_large
from moesaic.conformance.plainest import listed, produced_layouts
from moesaic.conformance.published import PUBLISHED, published
from tests.conformance.wrong import Around

EVERY = (Reference(), *BACKENDS)
AXES = {"a": (1, 2, 3, 4), "b": ("x", "y", "z"), "c": (False, True), "d": (0, 1)}


def pairs(rows):
    return {(a, row[a], b, row[b]) for row in rows for a, b in combinations(AXES, 2)}


def every(admits=lambda *_: True):
    return {(a, i, b, j) for a, b in combinations(AXES, 2) for i, j in product(AXES[a], AXES[b]) if admits(a, i, b, j)}


def test_every_pair_meets_in_few_rows():
    rows = list(covering(AXES))
    assert pairs(rows) == every()
    assert len(rows) <= 14  # 12 are needed for the two longest axes
    assert rows == list(covering(AXES))


def test_what_is_not_admitted_never_meets_and_all_else_does():
    def together(row):
        return not (row.get("c") and row.get("b") == "x")

    assert pairs(covering(AXES, admits=together)) == every(lambda a, i, b, j: (a, i, b, j) != ("b", "x", "c", True))


def test_seeds_come_first_and_what_has_met_is_not_made_again():
    seeds = [{"a": 4, "c": True}, {"b": "z"}]
    rows = list(covering(AXES, seeds=seeds))
    assert [(rows[0]["a"], rows[0]["c"]), rows[1]["b"]] == [(4, True), "z"]
    assert list(covering(AXES, met=covering(AXES))) == []
    assert list(covering(AXES, met=[{"a": 7, "b": "x"}])) == list(covering(AXES))


def moved(case, accepts):
    constants, default = case.problem.activation.constants(), accepts.activation().constants()
    free = (*accepts.scalar, *accepts.per_expert)
    same = case.problem.activation.__class__ is accepts.activation
    return same and all(constants[name] != default[name] for name in free)


@pytest.mark.parametrize("backend", EVERY, ids=str)
def test_a_full_kit_has_every_scheme_and_activation_in_every_layout_and_dtype(backend):
    can, cases = backend.capabilities, cases_of(backend)
    layouts = produced_layouts(can)
    for scheme, layout in product(can.schemes, layouts):
        here = [case.problem for case in cases if (case.problem.scheme, case.fed) == (scheme, layout)]
        assert any(p.bias == can.bias and p.output_norm is None for p in here)
        assert any(p.weight_on_input for p in here) == (can.weight_on_input and layout.has_routing)
    for accepts, layout in product(listed(can), layouts):
        assert any(case.fed == layout and moved(case, accepts) for case in cases)
    for accepts, scheme in product(listed(can), can.schemes):
        assert any(case.problem.scheme == scheme and moved(case, accepts) for case in cases)
    assert {(c.problem.dtype, c.problem.scheme) for c in cases} >= set(product(can.dtypes, can.schemes))
    normed = {case.problem.scheme for case in cases if case.problem.output_norm is not None}
    assert not can.output_norm or normed >= set(can.schemes)


@pytest.mark.parametrize("backend", EVERY, ids=str)
def test_a_quick_kit_crosses_every_scheme_and_activation_once(backend):
    can = backend.capabilities
    crossed = [case for case in cases_of(backend, quick=True) if case.num_tokens in TOKENS]
    assert {case.problem.scheme for case in crossed} == set(can.schemes)
    assert all(any(moved(case, accepts) for case in crossed) for accepts in listed(can))
    assert {case.problem.dtype for case in crossed} == set(can.dtypes)


@pytest.mark.parametrize("backend", EVERY, ids=str)
def test_gradients_are_tried_in_every_dtype_and_of_many_rows(backend):
    can = backend.capabilities
    found = [case for case in cases_of(backend, quick=True) if case.problem.differentiable]
    assert bool(found) == can.differentiable
    if found:
        assert {case.problem.dtype for case in found} == set(can.dtypes)
        assert {case.fed for case in found} == set(produced_layouts(can))
        assert max(case.num_tokens for case in found) == 67
        assert any(case.problem.output_norm for case in found) == can.output_norm
        assert any(case.problem.weight_on_input for case in found) == can.weight_on_input


@pytest.mark.parametrize("quick", [True, False])
def test_round_numbers_of_experts_are_named_all_and_sums_are_as_long_as_models_have_them(quick):
    cases = cases_of(Reference(), quick=quick)
    for experts in (32, 128):
        case = next(case for case in cases if case.problem.num_experts == experts)
        named = contents_of(case).ids.unique().tolist()
        assert set(range(experts)) - set(named) == {empty_expert(case)}
    assert {(7168, 24), (24, 14336)} <= {(c.problem.hidden_size, c.problem.intermediate_size) for c in cases}


def test_published_constants_come_where_they_are_declared():
    assert tuple(published(Reference.capabilities)) == PUBLISHED
    assert SwiGLU(alpha=1.702, beta=1.0, limit=7.0) in {c.problem.activation for c in cases_of(Reference(), quick=True)}
    assert torch.bfloat16 in Reference.capabilities.dtypes


def test_a_weight_on_the_input_needs_a_layout_with_routing():
    can = replace(Reference.capabilities, layouts=(GroupedContiguous(8),))
    backend = type("Grouped", (Around,), {"name": "grouped", "capabilities": can})()
    for quick in (True, False):
        assert not any(case.problem.weight_on_input for case in cases_of(backend, quick=quick))


def test_what_the_kit_cannot_make_is_not_the_backends_fault():
    case, machine = base_case(Reference.capabilities), Machine.current("cpu")
    assert too_large(case, machine) is None
    for huge in (case.changed(hidden_size=10**9), replace(case, num_tokens=10**12)):
        assert "the kit cannot make this case" in too_large(huge, machine)
        outcomes = conform(Reference(), machine, cases=[huge], checks=["equals_reference"]).outcomes
        assert [outcome.status for outcome in outcomes] == [Status.SKIPPED]
    assert "GiB" in too_large(case.in_layout(GroupedContiguous(10**9)), machine)
