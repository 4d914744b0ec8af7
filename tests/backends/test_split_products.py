"""What products of split rows allocate, with launches that do nothing, against the workspace that is stated."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from moesaic import (
    INT4,
    MXFP4,
    GroupedBatch,
    GroupedContiguous,
    PerGroup,
    Plain,
    ReLU2,
    Routing,
    Scheme,
    TritonQuantized,
)

pytest.importorskip("triton")
from triton.runtime.jit import JITFunction

from moesaic.backends.split_products import split_bytes, split_grouped, split_tokens
from moesaic.backends.stored_weights import StoredWeights
from moesaic.kernels.direct_launch import DirectLaunch
from tests.backends import example
from tests.backends.launch_fakes import faked
from tests.backends.peak_memory import peak_bytes

BACKEND = TritonQuantized(coded_rows=0, split_rows=1000)
SCHEMES = [Scheme(MXFP4(), Plain()), Scheme(INT4(PerGroup(128), scale=torch.bfloat16), Plain())]
SIZES = [(136, 72), (256, 192), (1032, 136)]
each_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=repr)


@pytest.fixture
def idle(monkeypatch):
    """Launches compile nothing and run nothing; their names."""
    names = []
    _, through = faked(monkeypatch)
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: names.append(self.__name__))
    monkeypatch.setattr(DirectLaunch, "launch", lambda self, grid, *args, **kwargs: names.append(self.fn.__name__))
    assert not through
    return names


def layer(scheme, sizes, **changes):
    """(problem, what the kernels hold of its weights)."""
    case = example.problem(dtype=torch.bfloat16, hidden_size=sizes[0], intermediate_size=sizes[1], **changes)
    weights = example.weights(case).quantize(scheme.weights)
    case = replace(case, scheme=scheme)
    return case, StoredWeights.of(weights, case)


@each_scheme
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "changes", [{}, {"weight_on_input": True, "bias": True}, {"activation": ReLU2(), "num_experts": 40}], ids=str
)
def test_tokens_stay_inside_the_workspace(idle, scheme, sizes, changes):
    """Whatever has to be copied first: rows, ids and weights that do not lie as kernels read them."""
    case, prepared = layer(scheme, sizes, **changes)
    for count in (1, 2, 7, 33, 300):
        hidden = torch.zeros(case.hidden_size, count, dtype=torch.bfloat16).t()
        ids, weights = torch.zeros(3, count, dtype=torch.int32).t(), torch.zeros(3, count).t()
        routing = Routing(ids, weights)
        used = peak_bytes(partial(split_tokens, hidden, routing, prepared, case))
        assert used <= split_bytes(case, count) <= BACKEND.workspace(case, count)
    assert split_bytes(case, 300) <= 2 * used, "so generous that it says nothing"
    assert idle[-5:] == ["_order_few", "_split_rows", "_split_product", "_split_product", "_combine"]


@each_scheme
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_in_expert_order_stay_inside_the_workspace(idle, scheme, sizes):
    case, prepared = layer(scheme, sizes, layout=GroupedContiguous(8))
    begins = torch.arange(10, dtype=torch.int32)[::2] * 4
    for count in (1, 41, 300):
        rows = torch.zeros(case.hidden_size, count, dtype=torch.bfloat16).t()
        batch = GroupedBatch(rows, begins.clamp(max=count // 8 * 8), torch.zeros_like(begins), 8)
        used = peak_bytes(partial(split_grouped, batch, prepared, case))
        assert used <= split_bytes(case, count) <= BACKEND.workspace(case, count)
    assert split_bytes(case, 300) <= 2 * used, "so generous that it says nothing"
    assert idle[-4:] == ["_map", "_split_rows", "_split_product", "_split_product"]
