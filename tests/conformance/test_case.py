"""Cases, contents and batches: values that repeat, poison that lies where nobody defined anything."""

import dataclasses
import math

import pytest
import torch

from moesaic import (
    ACTIVATIONS,
    BACKENDS,
    BatchedExperts,
    GroupedContiguous,
    MoesaicError,
    PaddedStandard,
    Reference,
    Standard,
)
from moesaic.conformance import CHECKS, Case, base_case, cases_of
from moesaic.conformance.case_text import case_text
from moesaic.conformance.cases import produced_layouts
from moesaic.conformance.contents import contents_of, empty_expert, weights_of
from moesaic.conformance.feeding import CALM, NAN, Poison, feed, garbage_ids
from moesaic.conformance.moved import moved, moved_per_expert
from moesaic.conformance.unlisted import UnlistedActivation, UnlistedFormat
from moesaic.parsing import parse
from moesaic.vocabulary import VOCABULARY
from tests.conformance.wrong import Around

KINDS = {kind.__name__: kind for kind in (*VOCABULARY, UnlistedActivation, UnlistedFormat, Case)}
ALL = tuple(dict.fromkeys(case for b in (Reference(), *BACKENDS) for case in cases_of(b)))
SMALL = [case for case in ALL if not case.is_large][::5]


def keep(values):
    return values


def test_a_case_is_read_back_from_its_repr():
    for case in ALL:
        assert parse(repr(case), KINDS) == case
        assert hash(parse(repr(case), KINDS)) == hash(case)


def test_a_case_is_read_back_from_its_short_text():
    for case in ALL:
        assert parse(case_text(case), KINDS) == case
    plain = base_case(Reference.capabilities)
    assert "scheme" not in case_text(plain)
    assert "fed" not in case_text(plain)
    assert len(case_text(plain)) < 0.4 * len(repr(plain))


def test_a_case_is_fed_what_it_is_bound_with_unless_it_says():
    case = base_case(Reference.capabilities)
    padded = dataclasses.replace(case.problem, layout=PaddedStandard())
    assert Case(problem=padded).fed == PaddedStandard()
    assert Case(problem=padded, fed=Standard()).fed == Standard()
    assert Case(problem=padded) == case.in_layout(PaddedStandard())
    assert "AsBound" not in repr(Case(problem=padded))


def test_every_case_is_served_by_its_problem_and_sizes_are_those_of_models():
    assert {case.problem.hidden_size for case in ALL} >= {65, 704, 1408, 1856, 2880}
    assert {case.padding for case in ALL} >= {0.0, 0.25, 1.0}


BY_BACKEND = [(b, quick) for b in (Reference(), *BACKENDS) for quick in (True, False)]


@pytest.mark.parametrize(("backend", "quick"), BY_BACKEND, ids=str)
def test_columns_that_fill_every_tile_come_in_every_dtype_and_layout(backend, quick):
    can, cases = backend.capabilities, cases_of(backend, quick=quick)
    for tile in (16, 128):
        whole = [
            case.problem
            for case in cases
            if not (case.problem.hidden_size % tile or case.problem.intermediate_size % tile)
            and (tile == 128 or case.problem.hidden_size % 32)
        ]
        found = {(problem.dtype, problem.layout) for problem in whole}
        assert found >= {(dtype, layout) for dtype in can.dtypes for layout in produced_layouts(can)}
    odd = {(case.problem.dtype, case.problem.layout) for case in cases if case.problem.hidden_size % 16}
    assert odd >= {(dtype, layout) for dtype in can.dtypes for layout in produced_layouts(can)}


@pytest.mark.parametrize(("backend", "quick"), BY_BACKEND, ids=str)
def test_many_experts_slots_and_wide_alignments_come_where_they_are_declared(backend, quick):
    can, cases = backend.capabilities, cases_of(backend, quick=quick)
    assert max(case.problem.num_experts for case in cases) == min(1100, can.max_experts)
    assert max(case.problem.top_k for case in cases) == min(40, can.max_top_k)
    placed = [case for case in cases if not case.fed.has_routing and case.problem.num_experts > 64]
    wanted = {
        layout for layout in (BatchedExperts(), GroupedContiguous(64), GroupedContiguous(128)) if _fed(can, layout)
    }
    assert {case.fed for case in placed} == wanted


def _fed(can, layout):
    return any(consumed.accepts(layout) for consumed in can.layouts)


def test_limits_on_experts_and_slots_that_a_run_can_reach_are_reached():
    can = dataclasses.replace(Reference.capabilities, max_experts=2000, max_top_k=64, duplicate_ids=False)
    cases = cases_of(type("Limited", (Around,), {"name": "limited", "capabilities": can})())
    assert max(case.problem.num_experts for case in cases) == 2000
    assert max(case.problem.top_k for case in cases) == 64


def test_the_first_expert_and_the_last_are_idle_too():
    case = base_case(Reference.capabilities)
    assert [empty_expert(dataclasses.replace(case, seed=seed)) for seed in range(4)] == [2, 0, 4, 2]
    assert {empty_expert(case) for case in SMALL if case.problem.num_experts == 5} == {0, 2, 4}


def test_contents_repeat_and_one_expert_has_no_row():
    for case in SMALL[::3]:
        first, second = contents_of(case), contents_of(case)
        assert torch.equal(first.hidden_states, second.hidden_states)
        assert torch.equal(first.ids, second.ids)
        assert torch.equal(weights_of(case).down.data.view(torch.uint8), weights_of(case).down.data.view(torch.uint8))
        assert empty_expert(case) is None or not (first.ids == empty_expert(case)).any()
        assert (first.ids < case.problem.num_experts).all()


@pytest.mark.parametrize("value", [math.nan, 1e4, math.inf])
def test_poison_lies_in_undefined_memory_only(value):
    for case in SMALL:
        contents = contents_of(case)
        calm, poisoned = feed(case, contents, CALM, keep), feed(case, contents, Poison(value, rotation=1), keep)
        assert torch.equal(calm.live, poisoned.live)
        assert torch.equal(calm.batch.rows[calm.live], poisoned.batch.rows[poisoned.live])
        if case.fed != Standard():
            dead = poisoned.batch.rows[~poisoned.live]
            assert torch.equal(dead.nan_to_num(), torch.full_like(dead, value).nan_to_num())


def test_garbage_ids_name_no_expert():
    for experts in (1, 5, 896):
        assert not any(0 <= garbage < experts for garbage in garbage_ids(experts))
        assert len(garbage_ids(experts)) == 7
    ids = NAN.ids(20, 5)
    assert ids.dtype == torch.int32
    assert set(ids.tolist()) == set(garbage_ids(5))


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_a_moved_constant_changes_the_answer(kind):
    rows = 3 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    for field in dataclasses.fields(kind):
        changed = kind(**{field.name: moved(kind, field.name)})
        assert changed != kind()
        assert not torch.allclose(changed(rows), kind()(rows), rtol=1e-4, atol=1e-4)
        if field.metadata.get("constant"):
            assert len(set(moved_per_expert(kind, field.name, 5))) == 5


@pytest.mark.parametrize(
    "fields", [{"skew": -1.0}, {"padding": 1.5}, {"num_tokens": -1}, {"seed": 0.5}, {"fed": "Standard()"}], ids=str
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_field_is_an_error(fields):
    with pytest.raises(MoesaicError):
        dataclasses.replace(base_case(Reference.capabilities), **fields)


def test_cases_of_many_experts_are_left_to_few_checks():
    many = base_case(Reference.capabilities).changed(num_experts=67)
    assert many.has_many_experts
    tried = {check.name for check in CHECKS if check.device is None and check.applies(Reference(), many) is None}
    values = {"declines", "equals_reference", "undefined_rows", "canonical_weights"}
    assert tried == values | {"exactly_once", "workspace"}
