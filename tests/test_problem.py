"""Problem: what is refused, and that equal problems have one hash and one evaluable repr."""

import dataclasses

import numpy as np
import pytest
import torch

import moesaic
from moesaic import (
    UNQUANTIZED,
    BatchedExperts,
    GroupedContiguous,
    OutputNorm,
    PaddedStandard,
    Plain,
    Problem,
    ReLU2,
    Standard,
    SwiGLU,
)
from moesaic.errors import ActivationError, ProblemError

FIELDS = {
    "num_experts": 4,
    "top_k": 2,
    "hidden_size": 40,
    "intermediate_size": 24,
    "activation": SwiGLU(limit=(7.0, 7.0, 5.0, 7.0)),
}
OTHER = {
    "num_experts": 5,
    "top_k": 3,
    "hidden_size": 41,
    "intermediate_size": 25,
    "activation": ReLU2(),
    "dtype": torch.float32,
    "layout": PaddedStandard(),
    "bias": True,
    "output_norm": OutputNorm(),
    "weight_on_input": True,
    "inactive_slots": False,
    "duplicate_ids": False,
    "deterministic": True,
    "graph_capture": True,
    "differentiable": True,
}
"""A second value of every field that has one."""


def problem(**changes):
    return Problem(**{"activation": SwiGLU(), **{k: v for k, v in FIELDS.items() if k != "activation"}, **changes})


def evaluated(text):
    return eval(text, {"torch": torch, **vars(moesaic)})  # noqa: S307


@pytest.mark.parametrize("field", OTHER)
def test_every_field_counts_in_equality_hash_and_repr(field):
    one, other, again = problem(), problem(**{field: OTHER[field]}), problem(**{field: OTHER[field]})
    assert one != other
    assert repr(one) != repr(other)
    assert other == again
    assert len({one, other, again}) == 2
    assert evaluated(repr(other)) == other


def test_the_list_of_other_values_is_complete():
    assert {f.name for f in dataclasses.fields(Problem)} == {*OTHER, "scheme"}


def test_per_expert_constants_survive_the_repr():
    assert evaluated(repr(Problem(**FIELDS))) == Problem(**FIELDS)


@pytest.mark.parametrize("field", ["num_experts", "top_k", "hidden_size", "intermediate_size"])
@pytest.mark.parametrize(
    "value",
    [0, -5, True, 2.0, float("nan"), "4", None, 10**5000, -(10**5000)],
    ids=lambda v: f"{v!s:.5}" if not isinstance(v, int) else "int",
)
@pytest.mark.usefixtures("unchecked")
def test_a_size_is_a_whole_number_above_zero(field, value):
    with pytest.raises(ProblemError, match=rf"Problem\.{field} is "):
        problem(**{field: value})


@pytest.mark.parametrize("field", [name for name, value in OTHER.items() if isinstance(value, bool)])
@pytest.mark.parametrize("value", [0, 1, None, "yes", np.True_], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_a_flag_is_true_or_false_and_never_unset(field, value):
    with pytest.raises(ProblemError, match=rf"Problem\.{field} is .*True or False"):
        problem(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation", None),
        ("activation", "swiglu"),
        ("activation", SwiGLU),
        ("activation", lambda rows: rows),
        ("scheme", None),
        ("scheme", "fp8"),
        ("scheme", Plain()),
        ("layout", None),
        ("layout", Standard),
        ("layout", "standard"),
        ("output_norm", 1e-6),
        ("output_norm", False),
        ("dtype", None),
        ("dtype", "bfloat16"),
        ("dtype", torch.int8),
        ("dtype", torch.float8_e4m3fn),
        ("dtype", float),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_field_of_another_kind_is_refused_by_name(field, value):
    with pytest.raises(ProblemError, match=rf"Problem\.{field}"):
        problem(**{field: value})


def test_a_problem_needs_its_activation_and_its_sizes():
    for missing in FIELDS:
        with pytest.raises(TypeError, match=missing):
            Problem(**{k: v for k, v in FIELDS.items() if k != missing})


@pytest.mark.usefixtures("unchecked")
def test_sizes_of_numpy_are_stored_as_ints():
    assert problem(hidden_size=np.int64(40)) == problem()
    assert repr(problem(hidden_size=np.int64(40))) == repr(problem())


@pytest.mark.parametrize("limits", [(7.0, 5.0, 7.0), (7.0, 5.0, 7.0, 7.0, 7.0)])
def test_constants_per_expert_are_as_many_as_the_experts(limits):
    with pytest.raises(ActivationError, match=rf"SwiGLU\.limit holds {len(limits)} values.* 4 experts"):
        problem(activation=SwiGLU(limit=limits))


@pytest.mark.parametrize("layout", [GroupedContiguous(8), BatchedExperts()], ids=repr)
def test_weights_on_the_input_need_a_layout_that_carries_weights(layout):
    with pytest.raises(ProblemError, match="weight_on_input"):
        problem(layout=layout, weight_on_input=True)


def test_widths_and_counts():
    gated, plain = problem(), problem(activation=ReLU2())
    assert (gated.width, plain.width) == (48, 24)
    assert gated.num_weights == 40 * 48 + 24 * 40
    assert plain.num_weights == 40 * 24 + 24 * 40
    assert gated.flops(3) == 3 * 2 * gated.num_weights
    assert gated.flops(0) == 0


def test_what_is_not_said_is_the_general_case():
    given = problem()
    assert (given.inactive_slots, given.duplicate_ids) == (True, True)
    assert not any((given.bias, given.weight_on_input, given.deterministic, given.graph_capture, given.differentiable))
    assert given.scheme == UNQUANTIZED
    assert given.layout == Standard()
    assert given.output_norm is None


def test_more_slots_than_experts_is_a_problem():
    """Ranks that hold few of the experts see every slot of the model."""
    assert problem(num_experts=1, top_k=8).top_k == 8
