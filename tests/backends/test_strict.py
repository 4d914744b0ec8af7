"""`Reference(strict=True)`: one batch for every broken promise, and none of the batches that keep theirs is refused."""

import dataclasses

import pytest
import torch

from moesaic import (
    BatchedBatch,
    BatchedExperts,
    GroupedBatch,
    GroupedContiguous,
    PaddedStandard,
    PaddedStandardBatch,
    Reference,
    Routing,
    Standard,
    StandardBatch,
    bind,
)
from moesaic.errors import BackendError, BatchError
from tests.backends import example, feeding

NAN, INF = float("nan"), float("inf")
LAYOUTS = (Standard(), PaddedStandard(), GroupedContiguous(1), GroupedContiguous(8), BatchedExperts())


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("poison", [NAN, 1e4, INF])
def test_batches_that_keep_their_promises_pass(layout, poison):
    case = example.problem(layout=layout)
    given = example.weights(case)
    batch, _, live = feeding.feed(case, given, poison)
    strict, lenient = (bind(case, given, backends=(Reference(strict=s),)) for s in (True, False))
    live = torch.from_numpy(live)
    assert torch.equal(strict(batch)[live], lenient(batch)[live])


def test_nothing_at_all_passes():
    for layout in LAYOUTS:
        case = example.problem(layout=layout)
        Reference(strict=True).run(empty(case), example.weights(case), case)


def empty(case):
    rows, counts = torch.ones(0, case.hidden_size), torch.zeros(5, dtype=torch.int32)
    routing = Routing(torch.zeros(0, 3, dtype=torch.int32), torch.zeros(0, 3))
    match case.layout:
        case GroupedContiguous(alignment):
            return GroupedBatch(rows, counts, counts, alignment)
        case BatchedExperts():
            return BatchedBatch(torch.ones(5, 0, case.hidden_size), counts)
        case PaddedStandard():
            return PaddedStandardBatch(rows, routing, torch.tensor(0, dtype=torch.int32))
    return StandardBatch(rows, routing)


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def rows(*shape, **holes):
    """Ones with `at=(index, value)` in them."""
    given = torch.ones(*shape, 72)
    for index, value in holes.values():
        given[index] = value
    return given


def tokens(ids, weights=None, hidden=None):
    p = torch.ones(len(ids), len(ids[0])) if weights is None else torch.tensor(weights)
    return (rows(len(ids)) if hidden is None else hidden), Routing(int32(ids), p)


def padded(*given, num_valid=None):
    return PaddedStandardBatch(*given, None if num_valid is None else int32(num_valid))


def grouped(offsets, counts, alignment=1, given=None):
    return GroupedBatch(rows(16) if given is None else given, int32(offsets), int32(counts), alignment)


def slabs(counts, given=None):
    return BatchedBatch(rows(len(counts), 4) if given is None else given, int32(counts))


ALL, GROUPS = [[0, 1, 2]], GroupedContiguous(4)
CASES = {
    "another layout": ({}, padded(*tokens(ALL)), r"bound with layout=Standard\(\)"),
    "too many slots": ({}, StandardBatch(*tokens([[0, 1, 2, 3]])), "4 slots a token, but .* top_k=3"),
    "nan weight": ({}, StandardBatch(*tokens([[0, 1, -1]], [[1.0, NAN, 1.0]])), "weight of row 0 slot 1 is nan"),
    "infinite weight": ({}, StandardBatch(*tokens([[4, 1, -1]], [[INF, 1.0, 1.0]])), r"slot 0 is inf.*expert 4"),
    "undefined row": (
        {},
        StandardBatch(*tokens([[0, 1, 2], [9, -1, -1]], hidden=rows(2, at=((1, 3), NAN)))),
        "row 1 is live, but column 3 of it is nan",
    ),
    "inactive slot": (
        {"inactive_slots": False},
        StandardBatch(*tokens([[0, 1, 2], [0, 5, 2]])),
        r"row 1 has the ids \[0, 5, 2\].*inactive_slots=False",
    ),
    "inactive slot in a live row": (
        {"inactive_slots": False, "layout": PaddedStandard()},
        padded(*tokens([[-1, -1, -1], [0, -1, 2]])),
        "row 1 has the ids",
    ),
    "repeated expert": (
        {"duplicate_ids": False},
        StandardBatch(*tokens([[0, 1, -1], [3, 1, 3]])),
        r"row 1 names an expert twice \(\[3, 1, 3\]\)",
    ),
    "negative num_valid": ({"layout": PaddedStandard()}, padded(*tokens(ALL), num_valid=-1), "needs 0 to 1"),
    "num_valid past the rows": ({"layout": PaddedStandard()}, padded(*tokens(ALL), num_valid=2), "has 1 rows"),
    "live row past num_valid": (
        {"layout": PaddedStandard()},
        padded(*tokens([[0, 1, 2], [-1, -1, -1], [9, 9, 4]]), num_valid=1),
        r"num_valid is 1, but row 2 has the active ids \[9, 9, 4\]",
    ),
    "infinite live row": (
        {"layout": PaddedStandard()},
        padded(*tokens([[-1, 9, 9], [9, 9, 0]], hidden=rows(2, a=(0, NAN), b=((1, 71), -INF)))),
        "row 1 is live, but column 71 of it is -inf",
    ),
    "alignment of the problem": (
        {"layout": GroupedContiguous(8)},
        grouped([0, 4, 8, 8, 8], [1, 1, 1, 0, 0], 4),
        r"batch is GroupedContiguous\(alignment=4\)",
    ),
    "counts of other experts": ({"layout": GROUPS}, grouped([0, 0], [1, 0], 4), "2 entries, but .* 5 local experts"),
    "offset off the alignment": (
        {"layout": GROUPS},
        grouped([0, 4, 6, 8, 12], [2, 2, 0, 1, 1], 4),
        r"offsets\[2\] is 6, but the batch declares multiples of 4",
    ),
    "negative count": ({"layout": GROUPS}, grouped([0, 4, 4, 8, 12], [2, -2, 2, 1, 1], 4), r"counts\[1\] is -2"),
    "negative offset": ({"layout": GROUPS}, grouped([-4, 4, 4, 8, 12], [0, 2, 2, 1, 1], 4), "rows -4 to -4"),
    "past the rows": ({"layout": GROUPS}, grouped([0, 4, 8, 8, 12], [4, 4, 0, 4, 5], 4), "12 to 17, but .* 0 to 16"),
    "offset past the rows": ({"layout": GROUPS}, grouped([0, 4, 8, 8, 20], [1, 1, 0, 1, 0], 4), "rows 20 to 20"),
    "overlapping groups": (
        {"layout": GROUPS},
        grouped([0, 4, 8, 8, 12], [5, 4, 0, 4, 0], 4),
        "expert 0 owns rows 0 to 5, but expert 1 begins at 4",
    ),
    "decreasing offsets": (
        {"layout": GROUPS},
        grouped([0, 8, 4, 12, 12], [4, 0, 4, 4, 0], 4),
        r"offsets\[2\] is 4 behind offsets\[1\], which is 8",
    ),
    "undefined row in a group": (
        {"layout": GROUPS},
        grouped([0, 4, 8, 8, 8], [2, 3, 0, 0, 0], 4, rows(16, gap=(2, NAN), a=((5, 0), NAN))),
        "row 5 is live, but column 0 of it is nan",
    ),
    "negative count of a slab": ({"layout": BatchedExperts()}, slabs([1, 2, -1, 0, 4]), r"counts\[2\] is -1"),
    "count past the slab": ({"layout": BatchedExperts()}, slabs([1, 2, 5, 0, 4]), r"counts\[2\] is 5, but .* 0 to 4"),
    "slabs of other experts": ({"layout": BatchedExperts()}, slabs([1, 2, 3]), "3 entries, but .* 5 local experts"),
    "undefined row in a slab": (
        {"layout": BatchedExperts()},
        slabs([1, 2, 0, 0, 4], rows(5, 4, gap=((0, 3), NAN), a=((1, 1, 7), INF))),
        "row 5 is live, but column 7 of it is inf",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_broken_promise_is_named(name):
    changes, batch, words = CASES[name]
    case = example.problem(**changes)
    with pytest.raises(BatchError, match=words):
        Reference(strict=True).run(batch, example.weights(case), case)


@pytest.mark.parametrize("garbage", example.GARBAGE_IDS)
def test_no_garbage_in_an_inactive_slot_is_refused(garbage):
    case = example.problem(duplicate_ids=False)
    batch = StandardBatch(*tokens([[garbage, 1, garbage]], [[NAN, 1.0, INF]]))
    given = example.weights(case)
    wanted = Reference().run(StandardBatch(*tokens([[-1, 1, -1]])), given, case)
    assert torch.equal(Reference(strict=True).run(batch, given, case), wanted)


def test_padding_is_no_inactive_slot_of_the_problem():
    case = example.problem(layout=PaddedStandard(), inactive_slots=False)
    batch = padded(*tokens([[0, 1, 2], [-1, 7, -1]], hidden=rows(2, a=(1, NAN))))
    assert Reference(strict=True).run(batch, example.weights(case), case)[0].isfinite().all()


@pytest.mark.usefixtures("unchecked")
def test_strict_is_a_field_like_others():
    assert dataclasses.replace(Reference(), strict=True) == Reference(strict=True) != Reference()
    assert eval(repr(Reference(strict=True)), {"Reference": Reference}) == Reference(strict=True)  # noqa: S307
    with pytest.raises(BackendError, match="True or False"):
        Reference(strict=1)


def test_without_strict_such_batches_are_computed_as_far_as_they_go():
    case = example.problem(inactive_slots=False)
    batch = StandardBatch(*tokens([[0, 5, 2]]))
    assert Reference().run(batch, example.weights(case), case).isfinite().all()
