"""Empty, single, hot, inactive, garbage, duplicate and NaN inputs, on every backend that runs on a CPU."""

import dataclasses

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
    bind,
)
from moesaic.errors import BatchError
from tests.backends import example, feeding, numpy_oracle
from tests.backends.peak_memory import peak_bytes
from tests.tolerance import assert_close

SUBJECTS = example.SUBJECTS
every_backend = pytest.mark.parametrize("backend", SUBJECTS, ids=lambda b: b.name)


def run(backend, case, ids, weights=None, rows=None):
    """(output, expected) for a batch with the given ids."""
    given = example.weights(case)
    ids = torch.as_tensor(ids, dtype=torch.int64)
    weights = torch.full(ids.shape, 0.5) if weights is None else torch.as_tensor(weights)
    rows = example.rows(case, len(ids)) if rows is None else rows
    routing = Routing(ids, weights)
    with torch.no_grad():
        got = bind(case, given, backends=(backend,))(StandardBatch(rows, routing))
    oracle = example.as_oracle(case, given)
    values = rows.double().numpy()
    return got, numpy_oracle.tokens(values, routing.topk_ids.numpy(), weights.double().numpy(), oracle)


@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize(
    ("backend", "dtype"), example.subjects_and([torch.float32, torch.bfloat16]), ids=example.subject_id
)
def test_zero_tokens_keep_shape_and_dtype(backend, top_k, dtype):
    case = example.problem(top_k=top_k, dtype=dtype)
    got, _ = run(backend, case, torch.empty(0, top_k))
    assert got.shape == (0, 72)
    assert got.dtype == dtype


@every_backend
def test_zero_rows_in_the_layouts_without_routing(backend):
    grouped = example.problem(backend=backend, layout=GroupedContiguous(4))
    none = torch.zeros(5, dtype=torch.int32)
    got = bind(grouped, example.weights(grouped), backends=(backend,))(
        GroupedBatch(torch.empty(0, 72, dtype=grouped.dtype), none, none, 4)
    )
    assert got.shape == (0, 72)
    batched = example.problem(backend=backend, layout=BatchedExperts())
    experts = bind(batched, example.weights(batched), backends=(backend,))
    assert experts(BatchedBatch(torch.full((5, 0, 72), torch.nan, dtype=batched.dtype), none)).shape == (5, 0, 72)
    assert experts(BatchedBatch(torch.full((5, 3, 72), torch.nan, dtype=batched.dtype), none)).shape == (5, 3, 72)


@every_backend
@pytest.mark.parametrize("ids", [[[4, 0, 1]], [[-1, 3, 999]], [[1, 1, 1]], [[0, 1, 0]]], ids=str)
def test_one_token(backend, ids):
    case = example.problem(backend=backend, bias=True)
    got, expected = run(backend, case, ids)
    assert_close(got, expected, case.dtype)


@every_backend
def test_all_tokens_on_one_expert(backend):
    case = example.problem(backend=backend, bias=True)
    got, expected = run(backend, case, [[3, -1, -1]] * 37)
    assert_close(got, expected, case.dtype)


@every_backend
@pytest.mark.parametrize("top_k", [1, 3])
def test_rows_without_an_active_slot_are_zero_and_cost_no_nan(backend, top_k):
    case = example.problem(backend=backend, bias=True, top_k=top_k)
    garbage = [-1, 5, 6, -(2**31), 2**31 - 1, 2**32 + 1, -(2**40)]
    ids = [[g] * top_k for g in garbage] + [[0] * top_k]
    weights = torch.full((len(ids), top_k), torch.nan)
    weights[-1] = 0.5
    given = example.weights(case)
    with torch.no_grad():
        batch = StandardBatch(example.rows(case, len(ids)), Routing(torch.tensor(ids), weights))
        got = bind(case, given, backends=(backend,))(batch)
    assert torch.equal(got[:-1], torch.zeros(len(garbage), 72, dtype=case.dtype))
    assert got[-1].isfinite().all()
    assert got[-1].abs().sum() > 1


@every_backend
def test_an_inactive_slot_never_touches_infinite_weights_of_an_expert(backend):
    case = example.problem(backend=backend)
    given = example.weights(case)
    given.gate_up.data[0], given.down.data[0] = torch.inf, torch.inf
    routing = Routing(torch.tensor([[1, -1, 5]]), torch.tensor([[0.5, 0.0, 0.0]]))
    with torch.no_grad():
        got = bind(case, given, backends=(backend,))(StandardBatch(example.rows(case, 1), routing))
    assert got.isfinite().all()


@every_backend
def test_a_zero_weight_is_still_a_weight(backend):
    case = example.problem(backend=backend, bias=True)
    got, expected = run(backend, case, [[1, 3, 4], [0, 1, 3]], weights=[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert_close(got, expected, case.dtype)


@every_backend
def test_nan_in_a_live_row_stays_in_that_row_and_reaches_it(backend):
    case = example.problem(dtype=torch.bfloat16)
    routing = example.routing(case, 11, garbage=False)
    rows = example.rows(case, 11)
    experts = bind(case, example.weights(case), backends=(backend,))
    with torch.no_grad():
        clean = experts(StandardBatch(rows, routing))
        rows[4, 7] = torch.nan
        got = experts(StandardBatch(rows, routing))
    others = torch.arange(11) != 4
    assert got[4].isnan().all()
    assert torch.equal(got[others], clean[others])


@every_backend
def test_many_small_experts(backend):
    case = example.problem(backend=backend, num_experts=896, top_k=16, hidden_size=16, intermediate_size=8, bias=True)
    g = np.random.default_rng(5)
    got, expected = run(backend, case, g.integers(0, 896, (9, 16)), weights=g.random((9, 16), dtype=np.float32))
    assert_close(got, expected, case.dtype)


@every_backend
def test_fewer_slots_than_bound_are_served_and_more_are_refused(backend):
    case = example.problem(backend=backend, top_k=3)
    got, expected = run(backend, case, [[1], [4], [-1]])
    assert_close(got, expected, case.dtype)
    with pytest.raises(BatchError, match="bind a problem with the larger top_k"):
        run(backend, case, [[1, 2, 3, 4]])


@every_backend
def test_a_padded_consumer_is_fed_no_padding_and_nothing_but_padding(backend):
    case = example.problem(backend=backend, layout=PaddedStandard(), bias=True)
    experts = bind(case, example.weights(case), backends=(backend,))
    rows, routing = example.rows(case, 6), example.routing(case, 6, garbage=False)
    with torch.no_grad():
        padded = experts(PaddedStandardBatch(rows, routing))
        standard = bind(example.problem(backend=backend, bias=True), example.weights(case), backends=(backend,))(
            StandardBatch(rows, routing)
        )
        assert torch.equal(padded, standard)
        assert torch.equal(experts(StandardBatch(rows, routing)), standard)
        nothing = Routing(torch.full((6, 3), -1, dtype=torch.int32), torch.full((6, 3), torch.nan))
        assert experts(PaddedStandardBatch(torch.full((6, 72), torch.nan, dtype=case.dtype), nothing)).shape == (6, 72)


@every_backend
@pytest.mark.parametrize(
    ("offsets", "counts", "message"),
    [
        ((0, 2, 3, 4, 5), (2, 1, 1, 1, 4), "where the rows end"),
        ((0, 1, 3, 4, 5), (2, 1, 1, 1, 1), "expert before it ends"),
        ((0, 2, 3, 4, 5), (2, 1, -1, 1, 1), "a count is at least 0"),
    ],
)
def test_groups_that_break_their_contract_are_an_error_on_a_cpu(backend, offsets, counts, message):
    case = example.problem(backend=backend, layout=GroupedContiguous())
    batch = GroupedBatch(
        example.rows(case, 8), torch.tensor(offsets, dtype=torch.int32), torch.tensor(counts, dtype=torch.int32)
    )
    with pytest.raises(BatchError, match=message):
        bind(case, example.weights(case), backends=(backend,))(batch)


@every_backend
@pytest.mark.parametrize("count", [-1, 4])
def test_counts_beyond_the_capacity_are_an_error_on_a_cpu(backend, count):
    case = example.problem(backend=backend, layout=BatchedExperts())
    counts = torch.tensor([1, 2, 0, count, 1], dtype=torch.int32)
    with pytest.raises(BatchError, match="a slab holds 0 to 3 rows"):
        bind(case, example.weights(case), backends=(backend,))(
            BatchedBatch(torch.zeros(5, 3, 72, dtype=case.dtype), counts)
        )


@every_backend
@pytest.mark.parametrize("layout", [Standard(), PaddedStandard(), GroupedContiguous(8), BatchedExperts()], ids=str)
def test_runs_agree_bit_for_bit_and_inputs_stay(backend, layout):
    case = example.problem(layout=layout, dtype=torch.bfloat16, bias=True, deterministic=True)
    given = example.weights(case)
    batch, _, live = feeding.feed(case, given, poison=0.25)
    experts = bind(case, given, backends=(backend,))
    kept = [(t, t.clone()) for t in (batch.rows, *given.tensors)]
    with torch.no_grad():
        first, second = experts(batch), experts(batch)
    mask = torch.tensor(live)
    assert torch.equal(first[mask], second[mask])
    assert all(torch.equal(now, before) for now, before in kept)
    storages = {t.untyped_storage().data_ptr() for t, _ in kept}
    assert first.untyped_storage().data_ptr() not in storages
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


@pytest.mark.parametrize("layout", [Standard(), GroupedContiguous(), BatchedExperts()], ids=str)
@pytest.mark.parametrize(
    ("backend", "dtype"), example.subjects_and([torch.float32, torch.bfloat16]), ids=example.subject_id
)
def test_a_call_stays_inside_the_workspace_it_states(backend, layout, dtype):
    case = example.problem(layout=layout, dtype=dtype, bias=True, hidden_size=256, intermediate_size=192)
    given = example.weights(case)
    batch, _, _ = feeding.feed(case, given, poison=0.0)
    experts = bind(case, given, backends=(backend,))
    num_rows = batch.rows.shape[:-1].numel()
    with torch.no_grad():
        experts(batch)
        used = peak_bytes(lambda: experts(batch))
    stated = experts.workspace(num_rows)
    assert used <= stated
    assert stated <= 12 * used, "so generous that it says nothing"


def test_workspace_grows_with_rows_and_not_with_experts_held_elsewhere():
    for backend in SUBJECTS:
        case = example.problem(backend=backend)
        small, large = backend.workspace(case, 64), backend.workspace(case, 128)
        assert small < large <= 2 * small + 1024
        more = dataclasses.replace(case, num_experts=500)
        assert backend.workspace(more, 64) <= small + 500 * 64
