"""The property tests are able to fail: each defect, put into the package, is found by the test meant for it."""

import pytest
import torch

from moesaic import (
    FP8,
    MXFP4,
    Activation,
    Granularity,
    Local,
    PerBlock,
    Plain,
    Scheme,
    Standard,
    SwiGLU,
    activations,
    quant,
)
from moesaic.routers import selection, sigmoid, softmax
from tests.properties import stored, test_activations, test_formats, test_layer, test_routers

LIMITED = (SwiGLU, {"alpha": (1.0, 1.702, 0.5), "beta": 1.0, "limit": (1.0, 2.0, 3.0)})
WEIGHING = {"epsilon": 0.0, "scaling_factor": 2.5}
LAYER = {
    "num_experts": 3,
    "top_k": 2,
    "hidden_size": 8,
    "intermediate_size": 6,
    "activation": LIMITED,
    "dtype": torch.float32,
    "scheme": Scheme(Plain(), Plain()),
    "layout": Standard(),
    "bias": True,
    "output_norm": None,
    "weight_on_input": False,
}
right_select, right_spread, right_weigh = Activation.select, Granularity.spread, selection.weigh


def limit_ignored(self, rows, at):
    gate, up = rows.chunk(2, dim=-1)
    return gate * torch.sigmoid(at(self.alpha) * gate) * (up + at(self.beta))


def gate_and_up_exchanged(self, rows, at):
    up, gate = rows.chunk(2, dim=-1)
    return gate * torch.sigmoid(at(self.alpha) * gate) * (up + at(self.beta))


def nan_laundered(gate, up, limit):
    return torch.fmin(gate, limit), torch.fmax(torch.fmin(up, limit), -limit)


def in_rising_order(self, expert_ids):
    return right_select(self, sorted(expert_ids))


def ties_to_the_higher(scores, top_k):
    return scores.shape[-1] - 1 - scores.flip(-1).argsort(dim=-1, descending=True, stable=True)[..., :top_k]


def scaled_twice(scores, ids, *, scaling_factor, **weighing):
    return right_weigh(scores, ids, scaling_factor=scaling_factor**2, **weighing)


def high_nibble_first(data):
    return torch.stack((data >> 4, data & 15), dim=-1).flatten(-2)


def transposed(self, scales, shape):
    return right_spread(self, scales.mT if scales.shape[-1] == scales.shape[-2] else scales, shape)


def a_percent_more(self, rows, receipt):
    return rows * 1.01


def inner(test):
    return test.hypothesis.inner_test


rows_test = inner(test_activations.test_float64_rows_give_the_formula)
stored_test = inner(test_formats.test_any_stored_numbers_mean_what_the_definitions_say)
layer_test = inner(test_layer.test_every_backend_computes_the_equations)
whole_test = inner(test_layer.test_routing_experts_and_shared_expert_make_the_layer)
DEFECTS = {
    "limit_ignored": (SwiGLU, "formula", limit_ignored, rows_test, (LIMITED, 4, 0)),
    "gate_and_up_exchanged": (SwiGLU, "formula", gate_and_up_exchanged, layer_test, (LAYER, 1)),
    "nan_laundered": (activations.swiglu, "limited", nan_laundered, rows_test, (LIMITED, 5, 2)),
    "in_rising_order": (
        Activation,
        "select",
        in_rising_order,
        inner(test_activations.test_the_experts_of_a_rank_keep_their_constants),
        (LIMITED, 0),
    ),
    "ties_to_the_higher": (
        softmax,
        "top_ids",
        ties_to_the_higher,
        inner(test_routers.test_softmax),
        ((6, 3), WEIGHING, True, 0),
    ),
    "scaled_twice": (sigmoid, "weigh", scaled_twice, inner(test_routers.test_sigmoid), ((6, 3), WEIGHING, True, 0)),
    "high_nibble_first": (
        quant.mxfp4,
        "unpack",
        high_nibble_first,
        stored_test,
        ((MXFP4(), stored.e2m1, (1, 32)), (3, 8), 0),
    ),
    "transposed": (
        Granularity,
        "spread",
        transposed,
        stored_test,
        ((FP8(PerBlock(2, 3)), stored.e4m3, (2, 3)), (4, 6), 0),
    ),
    "a_percent_more": (Local, "combine", a_percent_more, whole_test, (LAYER, 5, 2.5, 0)),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_nothing_without_it(name, monkeypatch):
    owner, attribute, wrong, test, arguments = DEFECTS[name]
    test(*arguments)
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises(AssertionError):
        test(*arguments)
