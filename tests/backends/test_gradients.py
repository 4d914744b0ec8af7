"""Gradients of the differentiable backends: gradcheck in float64, and agreement where float64 is not served."""

import pytest
import torch

from moesaic import (
    BACKENDS,
    BatchedBatch,
    BatchedExperts,
    ExpertWeights,
    GroupedBatch,
    GroupedContiguous,
    PowLU,
    Reference,
    ReLU2,
    Routing,
    SiTU,
    StandardBatch,
    SwiGLU,
    bind,
)
from moesaic.errors import GradientError
from tests.backends import example

DIFFERENTIABLE = [b for b in BACKENDS if b.capabilities.differentiable]
OTHERS = [b for b in example.SUBJECTS if not b.capabilities.differentiable]


def leaves(case):
    given = example.weights(case)
    return [t.detach().clone().requires_grad_() for t in given.tensors]


def from_leaves(tensors):
    gate_up, down, gate_up_bias, down_bias = tensors
    return ExpertWeights.plain(gate_up, down, gate_up_bias=gate_up_bias, down_bias=down_bias)


@pytest.mark.parametrize("activation", [SwiGLU(1.702, 1.0, 7.0), SiTU(), PowLU(), ReLU2(limit=3.0)], ids=str)
def test_reference_passes_gradcheck(activation):
    sizes = {"hidden_size": 6, "intermediate_size": 4, "num_experts": 4, "top_k": 2}
    case = example.problem(dtype=torch.float64, activation=activation, bias=True, differentiable=True, **sizes)
    rows = example.rows(case, 5).requires_grad_()
    ids = torch.tensor([[0, 3], [1, 1], [-1, 3], [9, -5], [3, 0]])
    p = torch.rand(5, 2, dtype=torch.float64).requires_grad_()

    def layer(rows, p, *tensors):
        experts = bind(case, from_leaves(tensors), backends=(Reference(),))
        return experts(StandardBatch(rows, Routing(ids, p)))

    assert torch.autograd.gradcheck(layer, (rows, p, *leaves(case)))


@pytest.mark.parametrize("weight_on_input", [False, True])
@pytest.mark.parametrize("backend", DIFFERENTIABLE, ids=lambda b: b.name)
def test_gradients_equal_the_reference_and_skip_inactive_slots(backend, weight_on_input):
    case = example.problem(bias=True, differentiable=True, weight_on_input=weight_on_input)
    routing = example.routing(case, 23)
    results = []
    for subject in (backend, Reference()):
        tensors, rows = leaves(case), example.rows(case, 23).requires_grad_()
        p = routing.topk_weights.clone().requires_grad_()
        output = bind(case, from_leaves(tensors), backends=(subject,))(
            StandardBatch(rows, Routing(routing.topk_ids, p))
        )
        poisoned = torch.full((1 << 20,), torch.nan)  # freed at once: the next uninitialised block may hold NaN
        del poisoned
        output.square().sum().backward()
        results.append([t.grad for t in (rows, p, *tensors)])
    for got, wanted in zip(*results, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("backend", DIFFERENTIABLE, ids=lambda b: b.name)
@pytest.mark.parametrize("layout", [GroupedContiguous(8), BatchedExperts()], ids=str)
def test_gradients_in_the_layouts_without_routing(backend, layout):
    case = example.problem(bias=True, differentiable=True, layout=layout)
    counts = torch.tensor([3, 1, 0, 4, 2], dtype=torch.int32)
    results = []
    for subject in (backend, Reference()):
        tensors = leaves(case)
        experts = bind(case, from_leaves(tensors), backends=(subject,))
        if isinstance(layout, BatchedExperts):
            live = torch.arange(5) < counts.unsqueeze(1)
            rows = torch.where(live.unsqueeze(-1), example.rows(case, 25).view(5, 5, -1), torch.nan).requires_grad_()
            batch = BatchedBatch(rows, counts)
        else:
            live = (torch.arange(40) % 8) < counts.repeat_interleave(8)
            rows = torch.where(live.unsqueeze(-1), example.rows(case, 40), torch.nan).requires_grad_()
            batch = GroupedBatch(rows, torch.arange(0, 40, 8, dtype=torch.int32), counts, 8)
        experts(batch)[live].square().sum().backward()
        results.append([rows.grad[live], *(t.grad for t in tensors)])
    for got, wanted in zip(*results, strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("backend", OTHERS, ids=lambda b: b.name)
@pytest.mark.parametrize("wants", ["rows", "weights"])
def test_a_backend_without_gradients_says_so(backend, wants):
    case = example.problem(backend=backend, bias=True)
    rows = example.rows(case, 3).requires_grad_(wants == "rows")
    given = from_leaves(leaves(case)) if wants == "weights" else example.weights(case)
    experts = bind(case, given, backends=(backend,))
    batch = StandardBatch(rows, example.routing(case, 3))
    with pytest.raises(GradientError, match="differentiable=True"):
        experts(batch)
    with torch.no_grad():
        assert experts(batch).shape == rows.shape
