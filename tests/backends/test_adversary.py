"""Inputs that once gave a wrong answer or torch's own error, each on every backend that runs on a CPU."""

import dataclasses

import numpy as np
import pytest
import torch

from moesaic import (
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    Identity,
    Problem,
    Routing,
    StandardBatch,
    bind,
)
from tests.backends import example, numpy_oracle
from tests.tolerance import assert_close

SUBJECTS = example.SUBJECTS
every_backend = pytest.mark.parametrize("backend", SUBJECTS, ids=lambda b: b.name)


@every_backend
@pytest.mark.parametrize("offset", [0, 4])
def test_an_empty_expert_may_have_any_offset_that_does_not_decrease(backend, offset):
    case = example.problem(backend=backend, num_experts=3, layout=GroupedContiguous(4))
    given, rows = example.weights(case), example.rows(case, 12)
    offsets = torch.tensor([0, offset, 4], dtype=torch.int32)
    batch = GroupedBatch(rows, offsets, torch.tensor([2, 0, 5], dtype=torch.int32), 4)
    oracle = example.as_oracle(case, given)
    with torch.no_grad():
        got = bind(case, given, backends=(backend,))(batch)
    live = [(0, 0), (1, 0), *((r, 2) for r in range(4, 9))]
    wanted = [numpy_oracle.one_row(rows[r].double().numpy(), e, oracle) for r, e in live]
    assert_close(got[[r for r, _ in live]], np.stack(wanted), case.dtype)


@every_backend
@pytest.mark.parametrize("num_tokens", [1, 3, 600])
@pytest.mark.parametrize("weight", [0.5, 1 / 3, 3.3e38])
def test_infinite_results_and_huge_weights_are_what_the_formula_says(backend, num_tokens, weight):
    case = Problem(num_experts=1, top_k=1, hidden_size=8, intermediate_size=8, activation=Identity())
    ids, p = torch.zeros(num_tokens, 1, dtype=torch.int32), torch.full((num_tokens, 1), weight)
    rows = torch.ones(num_tokens, 8, dtype=torch.bfloat16)
    for size, finite in ((1e20, False), (2.0**-50, True)):
        each = torch.full((1, 8, 8), size, dtype=torch.bfloat16)
        with torch.no_grad():
            got = bind(case, ExpertWeights.plain(each, each), backends=(backend,))(StandardBatch(rows, Routing(ids, p)))
        wanted = 64 * each[0, 0, 0].double().item() ** 2 * p[0, 0].item() if finite else float("inf")
        assert got.isfinite().all() == finite
        torch.testing.assert_close(got.float(), torch.full((num_tokens, 8), wanted), rtol=2**-7, atol=0.0)


@pytest.mark.parametrize(
    ("backend", "dtype"),
    example.subjects_and([torch.float32, torch.float16, torch.bfloat16]),
    ids=example.subject_id,
)
@pytest.mark.parametrize("num_tokens", [1, 3, 300])
def test_float64_weights_and_autocast_change_neither_dtype_nor_answer(backend, dtype, num_tokens):
    case = example.problem(dtype=dtype, bias=True)
    experts = bind(case, example.weights(case), backends=(backend,))
    rows, routing = example.rows(case, num_tokens), example.routing(case, num_tokens)
    with torch.no_grad():
        expected = experts(StandardBatch(rows, routing))
        wide = Routing(routing.topk_ids, routing.topk_weights.double())
        torch.testing.assert_close(experts(StandardBatch(rows, wide)), expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(experts(StandardBatch(rows, routing)), expected)


@every_backend
def test_small_calls_stay_inside_the_workspace_too(backend):
    from tests.backends.peak_memory import peak_bytes  # noqa: PLC0415

    for num_tokens, top_k, hidden, inner in ((1, 1, 256, 64), (1, 2, 1024, 512), (16, 8, 256, 8), (3, 1, 8, 256)):
        for dtype in {torch.bfloat16, torch.float32}.intersection(backend.capabilities.dtypes):
            for activation in (Identity(), example.problem(backend=backend).activation):
                case = example.problem(top_k=top_k, hidden_size=hidden, intermediate_size=inner, dtype=dtype, bias=True)
                case = dataclasses.replace(case, activation=activation, weight_on_input=True)
                experts = bind(case, example.weights(case), backends=(backend,))
                batch = StandardBatch(example.rows(case, num_tokens), example.routing(case, num_tokens))
                with torch.no_grad():
                    experts(batch)
                    used = peak_bytes(lambda e=experts, b=batch: e(b))
                assert used <= experts.workspace(num_tokens), (case, used)
