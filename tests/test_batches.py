"""Routing and batches: what is refused when they are built, each with both sides in the message."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from moesaic import (
    BatchedBatch,
    BatchedExperts,
    GroupedBatch,
    GroupedContiguous,
    PaddedStandard,
    PaddedStandardBatch,
    Routing,
    Standard,
    StandardBatch,
)
from moesaic.errors import BatchError, LayoutError

FAR = (2**32 + 1, -(2**40), 2**31, 2**31 - 1, -(2**31) - 1, 2**32, 2**63 - 1, -(2**63), -1)
"""int64 ids outside int32, or outside the experts; cut to 32 bits the first would be 1 and the sixth 0."""


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def routing(num_tokens=3, top_k=2, device="cpu"):
    ids = torch.zeros(num_tokens, top_k, dtype=torch.int32, device=device)
    return Routing(ids, torch.ones(num_tokens, top_k, device=device))


pytestmark = pytest.mark.usefixtures("unchecked")


def test_int64_ids_become_int32_and_stay_the_same_ids():
    ids = torch.tensor([[0, 3], [2, -1]])
    got = Routing(ids, torch.ones(2, 2)).topk_ids
    assert got.dtype == torch.int32
    assert got.tolist() == ids.tolist()
    assert ids.dtype == torch.int64


def test_int32_ids_are_kept_as_they_are():
    ids, weights = i32(0, 1)[None], torch.ones(1, 2)
    kept = Routing(ids, weights)
    assert kept.topk_ids is ids
    assert kept.topk_weights is weights


@pytest.mark.parametrize("num_experts", [1, 2, 2**31 - 1])
@pytest.mark.parametrize("far", FAR)
def test_an_id_far_out_of_range_stays_out_of_range(far, num_experts):
    if far == 2**31 - 1 and num_experts == 2**31 - 1:
        num_experts -= 1
    got = Routing(torch.tensor([[far]]), torch.ones(1, 1)).topk_ids.item()
    assert not 0 <= got < num_experts


@pytest.mark.parametrize(
    ("ids", "weights", "says"),
    [
        (torch.zeros(2, 2).int(), torch.ones(2, 3), r"\(2, 2\).*\(2, 3\)"),
        (torch.zeros(2).int(), torch.ones(2), r"\(2,\)"),
        (torch.zeros(1, 2, 2).int(), torch.ones(1, 2, 2), r"\(1, 2, 2\)"),
        (torch.zeros(2, 2), torch.ones(2, 2), "topk_ids is torch.float32"),
        (torch.zeros(2, 2).bool(), torch.ones(2, 2), "topk_ids is torch.bool"),
        (torch.zeros(2, 2).short(), torch.ones(2, 2), "topk_ids is torch.int16"),
        (torch.zeros(2, 2).int(), torch.ones(2, 2).int(), "topk_weights is torch.int32"),
        (torch.zeros(2, 2).int(), torch.ones(2, 2).bfloat16(), "topk_weights is torch.bfloat16"),
        (torch.zeros(2, 2).int(), torch.ones(2, 2, device="meta"), "cpu.*meta"),
    ],
)
def test_ids_and_weights_that_do_not_fit_are_refused(ids, weights, says):
    with pytest.raises(BatchError, match=says):
        Routing(ids, weights)


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        (torch.ones(3, 1), r"\(3, 1\).*\(3,\)"),
        (torch.ones(2), r"\(2,\).*\(3,\)"),
        (torch.ones(()), r"\(\).*\(3,\)"),
        (torch.ones(3).int(), "torch.int32"),
        (torch.ones(3, device="meta"), "meta"),
    ],
)
def test_identity_weights_that_do_not_fit_are_refused(identity, says):
    given = routing()
    with pytest.raises(BatchError, match=f"identity_weights.*{says}"):
        Routing(given.topk_ids, given.topk_weights, identity)


@pytest.mark.parametrize("kind", [StandardBatch, PaddedStandardBatch])
@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (torch.ones(2, 8), "2 rows.*3 tokens"),
        (torch.ones(1, 3, 8), r"\(1, 3, 8\)"),
        (torch.ones(3), r"\(3,\)"),
        (torch.ones(3, 8).int(), "torch.int32"),
        (torch.ones(3, 8, device="meta"), "meta.*cpu"),
    ],
)
def test_hidden_states_that_do_not_fit_are_refused(kind, rows, says):
    with pytest.raises(BatchError, match=says):
        kind(rows, routing())


@pytest.mark.parametrize(
    "num_valid",
    [torch.tensor(2), i32(2), torch.tensor(2.0), torch.tensor(2, dtype=torch.int32, device="meta")],
    ids=str,
)
def test_num_valid_is_an_int32_scalar_beside_the_rows(num_valid):
    with pytest.raises(BatchError, match="num_valid"):
        PaddedStandardBatch(torch.ones(3, 8), routing(), num_valid)


@pytest.mark.parametrize(
    ("rows", "offsets", "counts", "says"),
    [
        (torch.ones(5), i32(0, 2), i32(2, 3), r"rows is \(5,\)"),
        (torch.ones(1, 5, 8), i32(0, 2), i32(2, 3), r"rows is \(1, 5, 8\)"),
        (torch.ones(5, 8), torch.tensor([0, 2]), i32(2, 3), "offsets is torch.int64"),
        (torch.ones(5, 8), i32(0, 2), torch.tensor([2, 3]), "counts is torch.int64"),
        (torch.ones(5, 8), i32(0, 2), i32(5), r"offsets is \(2,\) and counts \(1,\)"),
        (torch.ones(5, 8), i32(0, 2)[None], i32(2, 3), r"offsets is .*\(1, 2\)"),
        (torch.ones(5, 8), torch.tensor(0).int(), i32(2), r"offsets is .*\(\)"),
        (torch.ones(5, 8).long(), i32(0, 2), i32(2, 3), "rows is torch.int64"),
        (torch.ones(5, 8), i32(0, 2).to("meta"), i32(2, 3), "offsets is on meta"),
    ],
)
def test_grouped_rows_that_do_not_fit_are_refused(rows, offsets, counts, says):
    with pytest.raises(BatchError, match=says):
        GroupedBatch(rows, offsets, counts)


@pytest.mark.parametrize("alignment", [0, -1, True, 2.0, None])
def test_a_wrong_alignment_is_refused(alignment):
    with pytest.raises(LayoutError, match="alignment"):
        GroupedBatch(torch.ones(5, 8), i32(0), i32(5), alignment=alignment)


@pytest.mark.parametrize(
    ("rows", "counts", "says"),
    [
        (torch.ones(4, 8), i32(1, 1, 1, 1), r"rows is \(4, 8\)"),
        (torch.ones(2, 4, 8), i32(5), "counts has 1 entries, but rows holds 2 experts"),
        (torch.ones(2, 4, 8), i32(*range(8)), "counts has 8 entries, but rows holds 2 experts"),
        (torch.ones(2, 4, 8), torch.tensor([1, 2]), "counts is torch.int64"),
        (torch.ones(2, 4, 8), torch.tensor([1.0, 2.0]), "counts is torch.float32"),
        (torch.ones(2, 4, 8), i32(1, 2).to("meta"), "counts is on meta"),
    ],
)
def test_slabs_that_do_not_fit_are_refused(rows, counts, says):
    with pytest.raises(BatchError, match=says):
        BatchedBatch(rows, counts)


def test_a_batch_knows_its_layout_and_rows():
    tokens, slabs = torch.ones(3, 8), torch.ones(2, 4, 8)
    assert StandardBatch(tokens, routing()).layout == Standard()
    assert PaddedStandardBatch(tokens, routing()).layout == PaddedStandard()
    assert GroupedBatch(tokens, i32(0, 2), i32(2, 1), 2).layout == GroupedContiguous(2)
    assert BatchedBatch(slabs, i32(0, 4)).layout == BatchedExperts()
    assert StandardBatch(tokens, routing()).rows is tokens
    assert PaddedStandardBatch(tokens, routing(), torch.tensor(2, dtype=torch.int32)).rows is tokens


def test_an_alignment_of_numpy_is_stored_as_an_int():
    assert isinstance(GroupedBatch(torch.ones(3, 8), i32(0), i32(3), np.int64(4)).alignment, int)


def test_no_tokens_is_a_batch():
    assert StandardBatch(torch.ones(0, 8), routing(0)).rows.shape == (0, 8)
    assert GroupedBatch(torch.ones(0, 8), i32(0, 0), i32(0, 0)).rows.shape == (0, 8)
    assert BatchedBatch(torch.ones(2, 0, 8), i32(0, 0)).rows.shape == (2, 0, 8)


def test_values_are_not_read():
    """Undefined contents are no error at construction: a check that read them would wait for the device."""
    meta = torch.ones(5, 8, device="meta")
    GroupedBatch(meta, i32(9, 2).to("meta"), i32(-1, 3).to("meta"))
    StandardBatch(meta[:3], routing(device="meta"))


def test_batches_are_frozen_and_compared_by_identity():
    one, other = routing(), routing()
    with pytest.raises(FrozenInstanceError):
        one.topk_ids = other.topk_ids
    assert one == one  # noqa: PLR0124
    assert one != other
    assert len({one, other}) == 2
