"""Rows and weights that are views: transposed, sliced out of something wider, shifted off every alignment."""

import dataclasses

import pytest
import torch

from moesaic import BatchedExperts, ExpertWeights, GroupedContiguous, Standard, bind
from tests.backends import example, feeding
from tests.tolerance import assert_close


def transposed(t):
    return t.mT.contiguous().mT


def sliced(t):
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 3), torch.nan, dtype=t.dtype)
    wide[..., 1:-2] = t
    return wide[..., 1:-2]


def shifted(t):
    return torch.cat([t.new_full((1,), torch.nan), t.flatten()])[1:].view(t.shape)


@pytest.mark.parametrize("view", [transposed, sliced, shifted])
@pytest.mark.parametrize("layout", [Standard(), GroupedContiguous(), BatchedExperts()], ids=str)
@pytest.mark.parametrize(
    ("backend", "dtype"), example.subjects_and([torch.float32, torch.bfloat16]), ids=example.subject_id
)
def test_views_are_served_as_what_they_hold(backend, layout, view, dtype):
    case = example.problem(layout=layout, dtype=dtype, bias=True)
    given = example.weights(case)
    batch, expected, live = feeding.feed(case, given, poison=float("nan"))
    viewed = ExpertWeights.plain(
        view(given.gate_up.data),
        view(given.down.data),
        gate_up_bias=view(given.gate_up_bias),
        down_bias=view(given.down_bias),
    )
    name = "hidden_states" if layout == Standard() else "rows"
    batch = dataclasses.replace(batch, **{name: view(batch.rows)})
    experts = bind(case, viewed, backends=(backend,))
    with torch.no_grad():
        got = experts(batch)
    assert_close(got[torch.tensor(live)], expected[live], dtype)
    assert torch.equal(experts.canonical().gate_up.data, given.gate_up.data)
