"""Which cases a check is left out on: what is saved is never the only case of a dtype, a layout or a size."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from moesaic import BACKENDS, Capabilities, Machine, Reference
from moesaic.conformance import CHECKS, Status, base_case, cases_of, conform
from moesaic.conformance.checks.base import fills_tiles_only, has_plain_filling
from moesaic.conformance.plainest import finest, produced_layouts
from tests.conformance import wrong

CPU = Machine.current("cpu")
EVERY = [(backend, quick) for backend in (Reference(), *BACKENDS) for quick in (True, False)]
ON_WHOLE_TILES = {"declines", "equals_reference", "undefined_rows", "canonical_weights", "one_token", "hot_expert"}
ON_WHOLE_TILES |= {"canary"}


def named(name):
    return next(check for check in CHECKS if check.name == name)


def tried(backend, case):
    return {c.name for c in CHECKS if c.device is None and c.applies(backend, case) is None}


def whole(case):
    """Whether every tile of 16 is filled."""
    return not (case.problem.hidden_size % 16 or case.problem.intermediate_size % 16)


@pytest.mark.parametrize(("backend", "quick"), EVERY, ids=str)
def test_whole_tiles_in_a_coarse_dtype_are_left_to_values_and_memory(backend, quick):
    can, cases = backend.capabilities, cases_of(backend, quick=quick)
    left = [case for case in cases if fills_tiles_only(backend, case)]
    assert {case.problem.dtype for case in left} == set(can.dtypes) - {finest(can)}
    assert all(whole(case) for case in left)
    for case in left:
        assert tried(backend, case) == ON_WHOLE_TILES


@pytest.mark.parametrize(("backend", "quick"), EVERY, ids=str)
def test_what_is_left_out_there_is_tried_on_them_in_the_finest_dtype(backend, quick):
    can = backend.capabilities
    for layout in produced_layouts(can):
        cases = [case for case in cases_of(backend, quick=quick) if case.fed == layout and whole(case)]
        fine = [case for case in cases if case.problem.dtype == finest(can)]
        assert set().union(*(tried(backend, case) for case in fine)) > ON_WHOLE_TILES
        assert not any(fills_tiles_only(backend, case) for case in fine)


@pytest.mark.parametrize("row_bytes", [1, 16, 32, 64, 256])
def test_the_plainest_case_keeps_its_checks_whatever_rows_are_multiples_of(row_bytes):
    can = replace(Reference.capabilities, row_bytes=row_bytes)
    backend = type("Wide", (wrong.Around,), {"name": "wide", "capabilities": can})()
    for dtype in can.dtypes:
        for layout in produced_layouts(can):
            case = base_case(can, dtype).in_layout(layout)
            assert case.problem.hidden_size * dtype.itemsize % row_bytes == 0
            assert not fills_tiles_only(backend, case)
            assert tried(backend, case) > ON_WHOLE_TILES | {"two_runs", "nan_rows", "workspace", "torch_settings"}


@pytest.mark.parametrize(
    "change", [{"bias": True}, {"num_experts": 7}, {"top_k": 2}, {"deterministic": False}], ids=str
)
def test_a_case_that_moves_something_else_as_well_keeps_its_checks(change):
    can = Reference.capabilities
    columns = {"hidden_size": 48, "intermediate_size": 80}
    alone = base_case(can, torch.bfloat16).changed(**columns)
    assert fills_tiles_only(Reference(), alone)
    assert not fills_tiles_only(Reference(), alone.changed(**change))
    assert not fills_tiles_only(Reference(), base_case(can, finest(can)).changed(**columns))


@pytest.mark.parametrize(("backend", "quick"), EVERY, ids=str)
def test_settings_are_tried_in_every_dtype_and_layout_once(backend, quick):
    can, cases = backend.capabilities, cases_of(backend, quick=quick)
    settled = [case for case in cases if named("torch_settings").applies(backend, case) is None]
    plain = {base_case(can, dtype).in_layout(layout) for dtype in can.dtypes for layout in produced_layouts(can)}
    assert plain <= set(settled)
    assert all(has_plain_filling(backend, case) for case in settled)


@pytest.mark.parametrize("change", [{"padding": 1.0}, {"num_tokens": 40}, {"skew": 40.0}, {"seed": 3}], ids=str)
def test_another_filling_is_no_plain_one(change):
    case = base_case(Reference.capabilities, torch.bfloat16)
    assert has_plain_filling(Reference(), case)
    assert has_plain_filling(Reference(), case.changed(bias=True))
    assert not has_plain_filling(Reference(), replace(case, **change))
    assert named("torch_settings").applies(Reference(), replace(case, **change)) is not None


def slabs(problem, rows_of_one):
    """Elements of a buffer that holds so many rows for every expert, 64 times over so that it is most of a call."""
    return 64 * problem.num_experts * rows_of_one * problem.hidden_size


@dataclass(frozen=True)
class HotSlabs(wrong.Around):
    """States memory for an even load, and takes for every expert what the busiest one needs."""

    name: ClassVar[str] = "hot_slabs"
    capabilities: ClassVar[Capabilities] = wrong.DECLARED

    def workspace(self, problem, num_rows):
        even = num_rows * problem.top_k // problem.num_experts + problem.top_k
        return wrong.Around.workspace(self, problem, num_rows) + 4 * slabs(problem, even)

    def run(self, batch, prepared, problem):
        ids = batch.routing.topk_ids
        active = ids[(ids >= 0) & (ids < problem.num_experts)]
        held = torch.empty(slabs(problem, int(torch.bincount(active, minlength=1).max())))
        return wrong.Around.run(self, batch, prepared, problem) if len(held) else None


@pytest.mark.parametrize("duplicate_ids", [True, False])
def test_memory_that_the_busiest_expert_sets_is_found_with_and_without_duplicate_ids(duplicate_ids):
    case = base_case(wrong.DECLARED).changed(duplicate_ids=duplicate_ids)
    found = conform(HotSlabs(), CPU, checks=[named("workspace")], cases=[case])
    assert [outcome.status for outcome in found.outcomes] == [Status.FAILED]
    assert "the peak of a call with 64 rows" in found.faults[0].detail
    right = conform(wrong.Right(), CPU, checks=[named("workspace")], cases=[case])
    assert [outcome.status for outcome in right.outcomes] == [Status.PASSED]


def test_a_base_case_is_made_once_and_is_what_it_was():
    can = Reference.capabilities
    for dtype in (None, *can.dtypes):
        assert base_case(can, dtype) is base_case(replace(can), dtype)
        assert base_case(can, dtype) == base_case.__wrapped__(can, dtype)
    assert base_case(can, torch.float32) != base_case(can, torch.float64)
    assert base_case(replace(can, max_top_k=1)).problem.top_k == 1
