"""Constants of an activation: what is taken, how it is stored, and equality, hash and repr of the value."""

import copy
import pickle
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moesaic import ACTIVATIONS, GELU, GeGLU, Identity, PowLU, ReLU, ReLU2, SiTU, SwiGLU, SwiGLUStep
from moesaic.errors import ActivationError
from tests.activations import formulas
from tests.unchecked import unchecked

NAMES = {kind.__name__: kind for kind in ACTIVATIONS}

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
above_zero = st.floats(
    min_value=0.0, exclude_min=True, width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False
)


def constants(element):
    return element | st.lists(element, min_size=1, max_size=5).map(tuple)


# Kinds and arguments; the test builds the value, because the run-time type checks draw random numbers.
fields = st.one_of(
    st.tuples(st.just(SwiGLU), constants(numbers), constants(numbers), st.none() | constants(above_zero)),
    st.tuples(st.just(SwiGLUStep), constants(above_zero)),
    st.tuples(st.just(SiTU), constants(above_zero), st.none() | constants(above_zero)),
    st.tuples(st.just(PowLU), constants(above_zero), st.none() | constants(above_zero)),
    st.tuples(st.just(ReLU2), st.none() | constants(above_zero)),
    st.tuples(st.sampled_from([GeGLU, GELU]), st.sampled_from(["none", "tanh"])),
    st.tuples(st.sampled_from([ReLU, Identity])),
)


@given(fields)
def test_repr_evaluates_and_copies_are_equal(kind_and_arguments):
    kind, *arguments = kind_and_arguments
    with unchecked():
        activation = kind(*arguments)
        again = eval(repr(activation), {"__builtins__": {}}, NAMES)  # noqa: S307
        pickled = pickle.loads(pickle.dumps(activation))  # noqa: S301
    assert again == activation == pickled == copy.deepcopy(activation)
    assert hash(again) == hash(activation) == hash(pickled)
    assert repr(again) == repr(activation)


def test_one_value_has_one_repr_and_one_hash():
    assert SwiGLU(1) == SwiGLU(1.0)
    assert repr(SwiGLU(1)) == repr(SwiGLU(1.0)) == "SwiGLU(alpha=1.0, beta=0.0, limit=None)"
    assert len({SwiGLU(1), SwiGLU(1.0), SwiGLU((1.0, 1.0)), SwiGLU(beta=-0.0)}) == 1
    assert repr(SwiGLU(beta=-0.0)) == repr(SwiGLU(beta=0.0))


def test_a_tuple_of_equals_is_the_scalar():
    assert SwiGLU(limit=(7.0, 7.0, 7.0)) == SwiGLU(limit=7.0)
    assert SwiGLU(limit=(7.0,)).limit == 7.0
    assert SwiGLU(limit=(7.0, 7.0, 5.0)).limit == (7.0, 7.0, 5.0)
    assert SwiGLU(limit=(7.0, 5.0)) != SwiGLU(limit=(5.0, 7.0))


def test_different_activations_differ():
    assert len(set(formulas.CASES)) == len(formulas.CASES)
    assert SwiGLUStep(limit=7.0) != SwiGLU(limit=7.0)
    assert ReLU() != Identity()


@pytest.mark.parametrize(
    "seven",
    [
        7,
        np.float32(7),
        np.float64(7),
        np.int64(7),
        np.array(7.0),
        np.array([7.0, 7.0], dtype=np.float16),
        torch.tensor(7),
        torch.tensor(7.0, dtype=torch.bfloat16),
        torch.tensor(7.0, requires_grad=True),
        torch.tensor([7.0, 7.0]),
        Fraction(7),
        [7, 7.0],
    ],
    ids=repr,
)
@pytest.mark.usefixtures("unchecked")
def test_scalars_and_arrays_of_numpy_and_torch_are_stored_as_float(seven):
    limit = SwiGLU(limit=seven).limit
    assert limit == 7.0
    assert isinstance(limit, float)
    assert repr(SwiGLU(limit=seven)) == repr(SwiGLU(limit=7.0))


@pytest.mark.parametrize(
    "values", [[1, 2], np.array([1.0, 2.0]), torch.tensor([1, 2]), (np.float32(1), 2), range(1, 3)]
)
@pytest.mark.usefixtures("unchecked")
def test_arrays_become_tuples_of_floats(values):
    assert SwiGLU(limit=values).limit == (1.0, 2.0)
    assert all(isinstance(value, float) for value in SwiGLU(limit=values).limit)
    assert hash(SwiGLU(limit=values)) == hash(SwiGLU(limit=(1.0, 2.0)))


REFUSED = [
    True,
    np.bool_(1),
    torch.tensor(1.0) > 0,
    float("nan"),
    float("inf"),
    -np.inf,
    np.float32("nan"),
    "7",
    b"7",
    1j,
    10**400,
    (),
    [],
    np.array([]),
    (1.0, float("nan")),
    (1.0, True),
    (1.0, "2"),
    (1.0, (2.0, 3.0)),
    (1.0, None),
    np.array([[1.0]]),
    torch.ones(1, 1),
    {1.0, 2.0},
    {1.0: 2.0},
    object(),
    float,
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: f"{type(value).__name__}-{str(value)[:20]}")
@pytest.mark.parametrize("field", ["alpha", "beta", "limit"])
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_finite_number_is_refused_by_name(field, value):
    with pytest.raises(ActivationError, match=f"SwiGLU.{field}"):
        SwiGLU(**{field: value})


@pytest.mark.usefixtures("unchecked")
def test_none_is_taken_only_where_it_means_not_applied():
    assert SwiGLU(limit=None).limit is None
    assert SiTU(linear_scale=None).linear_scale is None
    for kind, field in ((SwiGLU, "alpha"), (SwiGLU, "beta"), (SwiGLUStep, "limit"), (SiTU, "gate_scale")):
        with pytest.raises(ActivationError, match=rf"{kind.__name__}.{field} is None"):
            kind(**{field: None})


@pytest.mark.parametrize("value", [0.0, -1.0, (1.0, 0.0)])
@pytest.mark.parametrize(
    ("kind", "field"),
    [(SwiGLU, "limit"), (SwiGLUStep, "limit"), (SiTU, "gate_scale"), (SiTU, "linear_scale"), (PowLU, "exponent")],
)
def test_limits_scales_and_exponents_are_above_zero(kind, field, value):
    with pytest.raises(ActivationError, match=f"{kind.__name__}.{field}.* above zero"):
        kind(**{field: value})


@pytest.mark.parametrize("kind", [GeGLU, GELU])
@pytest.mark.parametrize("value", ["erf", "", None, True, ["none"], np.array(["none"])], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_an_unknown_approximation_is_refused(kind, value):
    with pytest.raises(ActivationError, match="'none', 'tanh'"):
        kind(value)


def test_an_approximation_is_stored_as_a_plain_string():
    with unchecked():
        assert repr(GeGLU(np.str_("tanh"))) == "GeGLU(approximate='tanh')"


def test_select_takes_the_constants_of_local_experts():
    activation = SwiGLU(alpha=2.0, limit=(7.0, 5.0, 7.0, 3.0))
    assert activation.per_expert() == {"limit": 4}
    assert activation.select((3, 1)) == SwiGLU(alpha=2.0, limit=(3.0, 5.0))
    assert activation.select([0, 2]) == SwiGLU(alpha=2.0, limit=7.0)
    assert activation.select(range(4)) == activation
    assert SwiGLU().select((9, 9)) == SwiGLU()


def test_constants_that_come_out_alike_are_still_given_per_expert():
    activation = SwiGLU(alpha=2.0, limit=(7.0, 5.0, 7.0, 3.0))
    alike = activation.select([0, 2])
    for one in (activation, alike, alike.select([1]), SwiGLU(limit=(7.0,)), copy.deepcopy(alike)):
        assert one.given_per_expert() == {"limit"}
    assert alike.per_expert() == {}
    assert SwiGLU(limit=7.0).given_per_expert() == SwiGLU().select((1, 2)).given_per_expert() == frozenset()
    assert hash(alike) == hash(SwiGLU(alpha=2.0, limit=7.0))


@pytest.mark.parametrize("ids", [(-1,), (4,), (0, 1, 99)])
def test_select_refuses_an_expert_that_is_not_there(ids):
    with pytest.raises(ActivationError, match=f"no expert {ids[-1]}"):
        SwiGLU(limit=(7.0, 5.0, 7.0, 3.0)).select(ids)


def test_values_are_frozen():
    with pytest.raises(FrozenInstanceError):
        SwiGLU().alpha = 2.0


@pytest.mark.parametrize("activation", formulas.CASES, ids=repr)
def test_width_and_constants(activation):
    assert activation.width(12) == (24 if type(activation).__name__ in formulas.GATED else 12)
    assert type(activation)(**activation.constants()) == activation


@pytest.mark.parametrize("number", [1e39, -1e300, 1e-320, 1e-60])
def test_a_number_that_float32_cannot_hold_is_refused(number):
    with pytest.raises(ActivationError, match="a number that float32 holds"):
        SwiGLU(beta=number)
    with pytest.raises(ActivationError, match="a number that float32 holds"):
        SwiGLU(beta=(0.0, number))
